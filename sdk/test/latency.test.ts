import { expect, it } from "vitest";
import { API_KEY, execWire, FakeServer, SANDBOX_ID } from "./fake-server.ts";

const ROUNDS = 400;

function median(values: number[]): number {
  return values.sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? Number.NaN;
}

it("adds less than 1 ms to a bare fetch for an exec", { retry: 2 }, async () => {
  await using server = (await FakeServer.start()).withSandbox();
  const answer = JSON.stringify(execWire({ stdout: "hi\n" }));
  server.on("POST", "/v1/sandboxes/{id}/exec", async (call) => {
    await call.text();
    call.response.writeHead(200, { "content-type": "application/json" }).end(answer);
  });
  const sandbox = await server.client().sandboxes.create();
  const bare = async (): Promise<void> => {
    const response = await fetch(`${server.url}/v1/sandboxes/${SANDBOX_ID}/exec`, {
      method: "POST",
      headers: { authorization: `Bearer ${API_KEY}`, "content-type": "application/json" },
      body: JSON.stringify({ cmd: "echo hi" }),
    });
    await response.json();
  };
  const times = { bare: [] as number[], sdk: [] as number[] };
  const timed = async (into: number[], call: () => Promise<unknown>): Promise<void> => {
    const start = performance.now();
    await call();
    into.push(performance.now() - start);
  };
  // Turn about, so that what slows the machine slows both.
  for (let round = 0; round < ROUNDS; round++) {
    await timed(times.bare, bare);
    await timed(times.sdk, () => sandbox.exec("echo hi"));
  }
  // The first hundred warm up the runtime.
  const [bareMs, sdkMs] = [median(times.bare.slice(100)), median(times.sdk.slice(100))];
  console.log(
    `exec round trip: bare fetch ${bareMs.toFixed(2)} ms, SDK ${sdkMs.toFixed(2)} ms (p50 of ${ROUNDS - 100})`,
  );
  expect(sdkMs - bareMs).toBeLessThan(1);
});
