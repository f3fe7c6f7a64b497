import type { IncomingMessage, Server } from "node:http";
import type { Duplex } from "node:stream";
import { type Log, responseInsteadOfUpgrade } from "@torpor/base";
import { sendError, toCodedError } from "./answer.ts";
import { requestIdOf } from "./api.ts";

/** Takes over a connection, or throws what the client is to be told. */
export type UpgradeTaker = (incoming: IncomingMessage, connection: Duplex, head: Buffer) => Promise<void>;

/** Gives every request for an upgrade to the first that wants it; a refusal is an ordinary answer with the error envelope. */
export function serveUpgrades(
  server: Server,
  log: Log,
  takers: readonly { wants: (incoming: IncomingMessage) => boolean; take: UpgradeTaker }[],
): void {
  server.on("upgrade", (incoming, connection, head) => {
    const requestId = requestIdOf(incoming);
    connection.on("error", () => connection.destroy());
    const taker = takers.find(({ wants }) => wants(incoming));
    if (taker === undefined) {
      connection.destroy();
      return;
    }
    taker.take(incoming, connection, head).catch((error: unknown) => {
      if (!connection.writable) return;
      const response = responseInsteadOfUpgrade(incoming, connection);
      response.setHeader("x-request-id", requestId);
      sendError(incoming, response, toCodedError(error, log, requestId), requestId);
    });
  });
}
