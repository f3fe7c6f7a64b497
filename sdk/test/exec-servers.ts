import { type ExecEvent, type Sandbox } from "@torpor/sdk";
import { type Call, execWire, FakeServer, ndjson, sendJson } from "./fake-server.ts";

type OnExec = (call: Call, send: (line: object) => void) => Promise<void> | void;

/** A server whose exec streams what `onExec` sends, after a start. */
export async function streaming(
  onExec: OnExec,
): Promise<{ server: FakeServer; sandbox: Sandbox } & AsyncDisposable> {
  const server = (await FakeServer.start()).withSandbox();
  server.on("POST", "/v1/sandboxes/{id}/exec", async (call) => {
    const send = ndjson(call.response);
    send({ type: "start", exec_id: "x1", pid: 42 });
    await onExec(call, send);
  });
  const sandbox = await server.client().sandboxes.create();
  return { server, sandbox, [Symbol.asyncDispose]: () => server[Symbol.asyncDispose]() };
}

/** A server whose exec answers in one piece. */
export async function buffered(
  answer: object,
): Promise<{ server: FakeServer; sandbox: Sandbox; body: () => unknown } & AsyncDisposable> {
  const server = (await FakeServer.start()).withSandbox();
  let body: unknown;
  server.on("POST", "/v1/sandboxes/{id}/exec", async (call) => {
    body = await call.json();
    sendJson(call.response, 200, execWire(answer));
  });
  const sandbox = await server.client().sandboxes.create();
  return { server, sandbox, body: () => body, [Symbol.asyncDispose]: () => server[Symbol.asyncDispose]() };
}

export async function collect<Output extends string | Uint8Array>(
  events: AsyncIterable<ExecEvent<Output>>,
): Promise<ExecEvent<Output>[]> {
  const all: ExecEvent<Output>[] = [];
  for await (const event of events) all.push(event);
  return all;
}
