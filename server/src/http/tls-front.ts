import type { Server } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import { createServer, type Server as TlsServer, type TLSSocket } from "node:tls";
import type { Clock, Log } from "@torpor/base";

/** A certificate, with what leads to its root, and its private key, PEM. */
export interface TlsPair {
  cert: string | Buffer;
  key: string | Buffer;
}

/** Where TLS is spoken, and with what. */
export interface TlsOptions extends TlsPair {
  listen: { host: string; port: number };
  /** Reads the pair anew, for one that is renewed while the server runs. Default: the same to the end. @throws when it cannot */
  reread?: () => TlsPair;
}

/** A renewed certificate is in use within this time. */
const REREAD_EVERY_MS = 60 * 60_000;

/** A TLS listener before an HTTP server: what comes in there is served by it as what comes to its own port is. */
export class TlsFront {
  readonly #close: () => Promise<void>;
  /** The port listened on. */
  readonly port: number;

  private constructor(port: number, close: () => Promise<void>) {
    this.port = port;
    this.#close = close;
  }

  /** @throws Error when certificate and key are not usable, or the address cannot be listened on */
  static async open(
    server: Server,
    { listen, cert, key, reread }: TlsOptions,
    clock: Clock,
    log: Log,
  ): Promise<TlsFront> {
    const front = createServer({ cert, key, ALPNProtocols: ["http/1.1"] });
    const sockets = new Set<Socket>();
    front.on("connection", (socket) => {
      sockets.add(socket);
      socket.once("close", () => sockets.delete(socket));
    });
    front.on("secureConnection", (socket: TLSSocket) => {
      socket.setNoDelay(true);
      server.emit("connection", socket);
    });
    front.on("tlsClientError", (_error, socket) => socket.destroy());
    await new Promise<void>((resolve, reject) => {
      front.once("error", reject);
      front.listen(listen.port, listen.host, () => {
        front.off("error", reject);
        resolve();
      });
    });
    const stop = reread === undefined ? () => {} : useRenewed(front, { cert, key }, reread, clock, log);
    return new TlsFront((front.address() as AddressInfo).port, async () => {
      stop();
      const closed = new Promise<void>((resolve) => void front.close(() => resolve()));
      for (const socket of sockets) socket.destroy();
      await closed;
    });
  }

  /** Ends it, and the connections through it; those of the server are to have ended before. */
  close(): Promise<void> {
    return this.#close();
  }
}

/** Goes over to what `reread` answers when it is another pair, for connections made from then on. Answers how to end it. */
function useRenewed(
  front: TlsServer,
  first: TlsPair,
  reread: () => TlsPair,
  clock: Clock,
  log: Log,
): () => void {
  let used = first;
  const look = (): void => {
    try {
      const { cert, key } = reread();
      if (String(cert) !== String(used.cert) || String(key) !== String(used.key)) {
        front.setSecureContext({ cert, key });
        used = { cert, key };
        log.info({ op: "tls", outcome: "renewed" });
      }
    } catch (error) {
      // Root's to read, or half renewed: the one in use stays.
      log.debug({ op: "tls", outcome: "kept", err: error });
    }
    cancel = clock.after(REREAD_EVERY_MS, look);
  };
  let cancel = clock.after(REREAD_EVERY_MS, look);
  return () => cancel();
}
