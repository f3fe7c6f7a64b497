import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import { expect, test } from "vitest";
import { requestUpgrade } from "../src/http-upgrade.ts";

test("a connection that is reset before it is joined with another ends, and nothing else does", async () => {
  const server = createServer();
  server.on("upgrade", (_incoming, connection) => {
    connection.write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n");
    setTimeout(() => (connection as Socket).resetAndDestroy(), 20);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  try {
    const outcome = await requestUpgrade({
      host: "127.0.0.1",
      port: (server.address() as AddressInfo).port,
      headers: { connection: "Upgrade", upgrade: "x" },
      headTimeoutMs: 5_000,
      signal: new AbortController().signal,
    });
    if (outcome.kind !== "upgraded") throw new Error("it was not upgraded");
    // Whoever listens for an error to see it would keep it from doing harm.
    await new Promise((resolve) => outcome.socket.once("close", resolve));
    expect(outcome.socket.errored).toMatchObject({ code: "ECONNRESET" });
  } finally {
    server.close();
  }
});
