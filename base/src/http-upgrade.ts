import {
  type IncomingHttpHeaders,
  type IncomingMessage,
  request,
  type RequestOptions,
  ServerResponse,
} from "node:http";
import type { Socket } from "node:net";
import type { Duplex } from "node:stream";

/** What a request for an upgrade came to: the bare connection, or an ordinary answer. */
export type UpgradeOutcome =
  | { kind: "upgraded"; headers: IncomingHttpHeaders; socket: Socket; head: Buffer }
  | { kind: "answered"; answer: IncomingMessage };

/**
 * Asks for an upgrade, such as to a WebSocket. `options.headers` names the protocol.
 *
 * @throws Error when the connection fails before there is an answer, when `signal` aborts, or after `headTimeoutMs`
 */
export function requestUpgrade(
  options: RequestOptions & { headTimeoutMs: number; signal: AbortSignal },
): Promise<UpgradeOutcome> {
  const { headTimeoutMs, ...rest } = options;
  return new Promise((resolve, reject) => {
    const outgoing = request(rest);
    const timer = setTimeout(
      () => outgoing.destroy(new Error(`no answer within ${headTimeoutMs} ms`)),
      headTimeoutMs,
    );
    outgoing.once("upgrade", (answer: IncomingMessage, socket: Socket, head: Buffer) => {
      clearTimeout(timer);
      // Also before anybody has joined it with another: an error that nobody hears ends the process.
      socket.on("error", () => socket.destroy());
      socket.setNoDelay(true);
      resolve({ kind: "upgraded", headers: answer.headers, socket, head });
    });
    outgoing.once("response", (answer: IncomingMessage) => {
      clearTimeout(timer);
      resolve({ kind: "answered", answer });
    });
    outgoing.on("error", reject);
    outgoing.once("close", () => {
      clearTimeout(timer);
      reject(new Error("the connection closed without an answer"));
    });
    outgoing.end();
  });
}

/** Tells the client that its connection speaks the other protocol from here on. */
export function switchProtocols(
  connection: Duplex,
  headers: Readonly<Record<string, string | readonly string[]>>,
): void {
  const lines = Object.entries(headers).flatMap(([name, value]) =>
    (typeof value === "string" ? [value] : value).map((each) => `${name}: ${each}`),
  );
  connection.write(["HTTP/1.1 101 Switching Protocols", ...lines, "", ""].join("\r\n"), "latin1");
}

/** An ordinary response for a request that asked for an upgrade and does not get one. The connection ends with it. */
export function responseInsteadOfUpgrade(incoming: IncomingMessage, connection: Duplex): ServerResponse {
  const response = new ServerResponse(incoming);
  response.shouldKeepAlive = false;
  // Node's own type of what an HTTP server's upgrade gives is wider than what it gives.
  response.assignSocket(connection as Socket);
  response.once("finish", () => connection.end());
  connection.once("close", () => response.destroy());
  return response;
}

/**
 * Lets two connections speak with each other until both ends have closed, or one breaks: then the other goes too. A slow
 * reader slows the writer. Nothing for `idleMs` either way ends both; 0: never.
 */
export function joinConnections(one: Socket, other: Socket, idleMs = 0): Promise<void> {
  return new Promise((resolve) => {
    let open = 2;
    for (const [from, to] of [
      [one, other],
      [other, one],
    ] as const) {
      from.setTimeout(0);
      from.pipe(to); // ends `to` at the end of `from`
      from.on("error", () => to.destroy());
      from.once("close", () => {
        // What is on its way to the other side may still arrive; what comes from it has nowhere to go.
        if (!to.writableEnded) to.end();
        to.resume();
        open -= 1;
        if (open === 0) resolve();
      });
    }
    if (idleMs === 0) return;
    let moved = -1;
    const timer = setInterval(() => {
      const now = one.bytesRead + one.bytesWritten + other.bytesRead + other.bytesWritten;
      if (now === moved) {
        one.destroy();
        other.destroy();
      }
      moved = now;
    }, idleMs);
    const stop = (): void => clearInterval(timer);
    one.once("close", stop);
    other.once("close", stop);
  });
}
