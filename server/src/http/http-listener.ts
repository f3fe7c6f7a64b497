import { createServer, type IncomingMessage, type RequestListener, type Server } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import type { Duplex } from "node:stream";
import { CodedError } from "@torpor/protocol";
import { serialId } from "../serial-id.ts";

/** Requests under way when the server stops get this long. */
const CLOSE_GRACE_MS = 3_000;
const CLOSE_SWEEP_MS = 20;

/**
 * Node's server as this one listens: with limits of its own, an answer to what is no HTTP, and an end that waits. It can listen
 * before there is anything to serve: what is asked until then waits.
 */
export class HttpListener {
  readonly server: Server;
  readonly #sockets = new Set<Socket>();
  #serve: RequestListener | undefined;
  /** What was asked before {@link serve}, to be gone on with. */
  readonly #early: { connection: Duplex; goOn: () => void }[] = [];

  constructor() {
    // Head limits are Node's own; a body may take as long as it is sent, since files of any size stream through here.
    this.server = createServer(
      {
        noDelay: true,
        keepAliveTimeout: 65_000,
        headersTimeout: 30_000,
        requestTimeout: 0,
        maxHeaderSize: 32 * 1024,
      },
      (incoming, outgoing) => {
        // A connection that breaks is seen as `close` by whoever works on it; unheard, its error would end the process.
        incoming.on("error", () => {});
        outgoing.on("error", () => {});
        if (this.#serve === undefined)
          this.#early.push({ connection: incoming.socket, goOn: () => this.#serve?.(incoming, outgoing) });
        else this.#serve(incoming, outgoing);
      },
    );
    this.server.on("upgrade", this.#keepUpgrade);
    this.server.on("clientError", refuseUnreadable);
    this.server.on("connection", (socket) => {
      this.#sockets.add(socket);
      socket.once("close", () => this.#sockets.delete(socket));
    });
  }

  /** @returns where it listens: port 0 is any that is free. @throws when that cannot be listened on */
  listen(address: { host: string; port: number }): Promise<AddressInfo> {
    return new Promise((resolve, reject) => {
      this.server.once("error", reject);
      this.server.listen(address, () => {
        this.server.off("error", reject);
        resolve(this.server.address() as AddressInfo);
      });
    });
  }

  /** Gives all requests to `serve`, those that waited first; upgrades go to whoever hears them on {@link server} by now. */
  serve(serve: RequestListener): void {
    this.#serve = serve;
    this.server.off("upgrade", this.#keepUpgrade);
    // Whose client has left hears no end any more: what is begun for it would be held for ever.
    for (const { connection, goOn } of this.#early.splice(0)) if (!connection.destroyed) goOn();
  }

  readonly #keepUpgrade = (incoming: IncomingMessage, connection: Duplex, head: Buffer): void => {
    connection.on("error", () => connection.destroy()); // unheard, it would end the process
    this.#early.push({ connection, goOn: () => this.server.emit("upgrade", incoming, connection, head) });
  };

  /** Requests under way get up to 3 s. Idempotent. */
  close(): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(() => {
        for (const socket of this.#sockets) socket.destroy();
      }, CLOSE_GRACE_MS);
      // A connection that is answered only now would wait for its client's next request, and one opened ahead for its first.
      const closeUnused = (): void => {
        this.server.closeIdleConnections();
        for (const socket of this.#sockets) if (socket.bytesRead === 0) socket.destroy();
      };
      const sweep = setInterval(closeUnused, CLOSE_SWEEP_MS);
      this.server.close(() => {
        clearTimeout(timer);
        clearInterval(sweep);
        resolve();
      });
      closeUnused();
    });
  }
}

/** Answers what is not HTTP, or whose head is too large, in the same envelope as everything else. */
function refuseUnreadable(error: NodeJS.ErrnoException, socket: Duplex): void {
  if (error.code === "ECONNRESET" || !socket.writable) {
    socket.destroy();
    return;
  }
  const isLarge = error.code === "HPE_HEADER_OVERFLOW";
  const refusal = isLarge
    ? new CodedError(
        "payload_too_large",
        "the request's head is larger than 32 KiB; shorten its path or headers",
      )
    : new CodedError(
        "invalid_request",
        `the request is not readable as HTTP/1.1 (${error.code ?? error.message})`,
      );
  const body = JSON.stringify(refusal.toEnvelope(serialId("req_")));
  const head = `HTTP/1.1 ${isLarge ? "431 Request Header Fields Too Large" : "400 Bad Request"}`;
  socket.end(
    `${head}\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`,
  );
}
