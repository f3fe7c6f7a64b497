import { describe, expect, it } from "vitest";
import { TorporError } from "@torpor/sdk";
import { base64, execEndLine, FakeServer, ndjson, sendError, sendJson } from "./fake-server.ts";

describe("commands in the background", () => {
  it("start, leave, attach and wait", async () => {
    let body: unknown;
    await using server = (await FakeServer.start()).withSandbox();
    server.on("POST", "/v1/sandboxes/{id}/exec", async (call) => {
      body = await call.json();
      sendJson(call.response, 202, { exec_id: "x9", pid: 7 });
    });
    server.on("GET", "/v1/sandboxes/{id}/processes/x9/output", ({ response }) => {
      const send = ndjson(response);
      send({ type: "start", exec_id: "x9", pid: 7 });
      send({ type: "stdout", data: base64("served"), dropped_bytes: 3 });
      send(execEndLine({ exec_id: "x9" }));
      response.end();
    });
    const sandbox = await server.client().sandboxes.create();
    const command = await sandbox.start("python3 -m http.server", { cwd: "/workspace" });
    expect(command).toMatchObject({ execId: "x9", pid: 7 });
    expect(body).toEqual({
      cmd: "python3 -m http.server",
      cwd: "/workspace",
      timeout_seconds: 86_400,
      background: true,
    });
    expect(await command.wait()).toMatchObject({ stdout: "served", truncated: true });
    expect((await sandbox.attach("x9", { bytes: true }).result).stdout).toEqual(
      new TextEncoder().encode("served"),
    );
  });

  it("kill and list", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    const signals: unknown[] = [];
    server.on("POST", "/v1/sandboxes/{id}/processes/*/signal", async (call) => {
      signals.push(await call.json());
      if (signals.length < 3) call.response.writeHead(204).end();
      else sendError(call.response, 404, "process_not_found", "no such process");
    });
    server.on("GET", "/v1/sandboxes/{id}/processes", ({ response }) => {
      const process = {
        pid: 7,
        exec_id: null,
        cmd: "top",
        args: [],
        cwd: null,
        user: "user",
        tag: null,
        started_at: "2026-11-29T16:00:00Z",
      };
      sendJson(response, 200, { processes: [process] });
    });
    const sandbox = await server.client().sandboxes.create();
    expect(await sandbox.kill(7)).toBe(true);
    expect(await sandbox.kill("x9", "SIGTERM")).toBe(true);
    expect(await sandbox.kill("x9")).toBe(false);
    expect(signals).toEqual([{ signal: "SIGKILL" }, { signal: "SIGTERM" }, { signal: "SIGKILL" }]);
    const [process] = await sandbox.processes();
    expect(process).toMatchObject({ pid: 7, execId: null, startedAt: new Date("2026-11-29T16:00:00Z") });
    await expect(sandbox.kill("..")).rejects.toBeInstanceOf(TorporError);
  });
});
