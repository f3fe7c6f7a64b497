import type { Server } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import { createServer, type TLSSocket } from "node:tls";

/** Where TLS is spoken, and with what. */
export interface TlsOptions {
  listen: { host: string; port: number };
  /** PEM: the certificate, with what leads to its root. */
  cert: string | Buffer;
  /** PEM. */
  key: string | Buffer;
}

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
  static async open(server: Server, { listen, cert, key }: TlsOptions): Promise<TlsFront> {
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
    return new TlsFront((front.address() as AddressInfo).port, async () => {
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
