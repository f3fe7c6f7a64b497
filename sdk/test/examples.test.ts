import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, it } from "vitest";
import { API_KEY, execWire, FakeServer, fileEntryWire, SANDBOX_ID, sendJson } from "./fake-server.ts";

async function runExample(server: FakeServer, name: string): Promise<string> {
  const program = fileURLToPath(new URL(`../../examples/${name}`, import.meta.url));
  const env = { ...process.env, TORPOR_URL: server.url, TORPOR_API_KEY: API_KEY };
  const argv = ["--import", "tsx", "--conditions=source", program];
  const { stdout } = await promisify(execFile)(process.execPath, argv, { env });
  return stdout;
}

it(
  "ephemeral.ts prints the script's output and the timings, and leaves no sandbox",
  { timeout: 60_000 },
  async () => {
    await using server = (await FakeServer.start()).withSandbox();
    server
      .on("PUT", "/v1/sandboxes/{id}/fs", async (call) => {
        expect(await call.text()).toContain("print(");
        sendJson(call.response, 200, fileEntryWire());
      })
      .on("POST", "/v1/sandboxes/{id}/exec", ({ response }) =>
        sendJson(response, 200, execWire({ stdout: "Hello\n" })),
      );
    expect(await runExample(server, "ephemeral.ts")).toMatch(
      /^Hello\ncreate +[\d.]+ ms\nwrite +[\d.]+ ms\nexec +[\d.]+ ms\n$/,
    );
    expect(server.callsTo("DELETE", SANDBOX_ID)).toHaveLength(1);
  },
);

it("second-exec.ts runs two commands in one sandbox, and leaves none", { timeout: 60_000 }, async () => {
  await using server = (await FakeServer.start()).withSandbox();
  server.on("POST", "/v1/sandboxes/{id}/exec", async (call) => {
    const { cmd } = await call.json();
    sendJson(call.response, 200, execWire({ stdout: `ran ${String(cmd)}\n` }));
  });
  const stdout = await runExample(server, "second-exec.ts");
  expect(stdout.match(/^ran /gm)).toHaveLength(2);
  expect(server.callsTo("POST", "/v1/sandboxes")).toHaveLength(1);
  expect(server.callsTo("DELETE", SANDBOX_ID)).toHaveLength(1);
});
