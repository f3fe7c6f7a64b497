import { createServer, type IncomingMessage, request, type ServerResponse } from "node:http";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { Readable } from "node:stream";
import { expect, test } from "vitest";
import type { HostClient } from "../src/host/host-client.ts";
import { PortProxy, type PortTarget } from "../src/ingress/port-proxy.ts";
import type { SandboxRecord } from "../src/store/sandbox-record.ts";

/** An endless answer of a sandbox. */
function stream(statusCode: number): IncomingMessage {
  return Object.assign(new Readable({ read() {} }), {
    statusCode,
    headers: {},
  }) as unknown as IncomingMessage;
}

test.each<[string, number, (outgoing: ServerResponse) => void]>([
  ["to a caller who has been refused meanwhile", 200, (outgoing) => outgoing.writeHead(401).end()],
  ["that HTTP cannot carry", 99, () => {}],
])("an answer %s does not hold the sandbox", async (_what, status, meanwhile) => {
  const answer = stream(status);
  let settle: (outcome: unknown) => void = () => {};
  const settled = new Promise((resolve) => (settle = resolve));
  const server = createServer((incoming, outgoing) => {
    const client = {
      openPort: () => {
        meanwhile(outgoing);
        return Promise.resolve(answer);
      },
    };
    const target: PortTarget = {
      client: client as unknown as HostClient,
      port: 3000,
      path: "/",
      wake: false,
      forwarding: { protocol: "http:", passAuthorization: false },
      answerHeaders: () => ({}),
    };
    new PortProxy()
      .forward({ id: "one" } as SandboxRecord, target, incoming, outgoing)
      .then(settle, settle)
      .finally(() => outgoing.end());
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const outgoing = request({ port: (server.address() as AddressInfo).port, host: "127.0.0.1", agent: false });
  outgoing.end();
  const [response] = (await once(outgoing, "response")) as [IncomingMessage];
  response.resume();
  await settled;
  expect(answer.destroyed).toBe(true);
  server.close();
});
