import { once } from "node:events";
import type { Server } from "node:http";
import { connect, type AddressInfo, type Socket } from "node:net";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { GateConnections } from "../src/network/gate-connections.ts";
import { createHttpFilter } from "../src/network/http-filter.ts";
import { LoopbackPolicies } from "./fakes/loopback-policies.ts";

let server: Server;
let client: Socket;
/** Names that were looked up and are not answered yet. */
let asked: { name: string; answer: (addresses: string[]) => void }[];
let received: string;

beforeEach(async () => {
  asked = [];
  received = "";
  server = createHttpFilter({
    connections: new GateConnections(
      new LoopbackPolicies({ egress: "none", allow: ["*.example"], deny: [] }),
    ),
    upstream: { addressesOf: (name) => new Promise((answer) => asked.push({ name, answer })) },
    onRefused: () => {},
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  client = connect((server.address() as AddressInfo).port, "127.0.0.1");
  client.on("data", (chunk) => (received += String(chunk)));
  client.on("error", () => {});
  await once(client, "connect");
});
afterEach(() => {
  client.destroy();
  server.closeAllConnections();
  server.close();
});

const requests = (count: number): string =>
  Array.from(
    { length: count },
    (_, index) => `GET /${index} HTTP/1.1\r\nHost: n${index}.example\r\n\r\n`,
  ).join("");

describe("requests that a client sends before the first is answered", () => {
  test("go on one after the other: a connection holds one of the host's", async () => {
    client.write(requests(10));
    await expect.poll(() => asked.length).toBe(1);
    // Long enough for all ten to have been read.
    await new Promise((resolve) => setTimeout(resolve, 30));
    expect(asked.map(({ name }) => name)).toEqual(["n0.example"]);
    asked[0]?.answer([]);
    await expect.poll(() => received).toContain("n0.example has no IPv4 address");
  });

  test("are dropped when the client leaves", async () => {
    client.write(requests(2));
    await expect.poll(() => asked.length).toBe(1);
    client.destroy();
    asked[0]?.answer(["203.0.113.7"]);
    await new Promise((resolve) => setTimeout(resolve, 30));
    expect(asked.length).toBe(1); // nobody waits for the second any more
  });

  test("are cut off beyond what a client needs", async () => {
    const closed = new Promise((resolve) => client.once("close", resolve));
    client.write(requests(500));
    await closed;
    expect(asked.length).toBeLessThanOrEqual(1);
  });
});
