import type { RequestListener, Server } from "node:http";
import { type Clock, type Log, Scope } from "@torpor/base";
import { HttpListener } from "./http-listener.ts";
import { TlsFront, type TlsOptions } from "./tls-front.ts";

export interface FrontDoorOptions {
  /** Port 0 is any that is free. */
  listen: { host: string; port: number };
  /** Speaks TLS there too. Default: nowhere. */
  tls?: TlsOptions | undefined;
  clock: Clock;
  log: Log;
}

/**
 * Where requests come in. Opened before there is a server, since low ports and keys of certificates take rights that the
 * server does without; what is asked before {@link serve} waits.
 */
export class FrontDoor {
  readonly #listener: HttpListener;
  readonly #close: () => Promise<void>;
  /** What it is called on this machine. */
  readonly url: string;
  readonly port: number;
  /** The port TLS is spoken on; undefined when it is not. */
  readonly tlsPort: number | undefined;

  private constructor(
    listener: HttpListener,
    at: { url: string; port: number; tlsPort: number | undefined },
    close: () => Promise<void>,
  ) {
    this.#listener = listener;
    this.url = at.url;
    this.port = at.port;
    this.tlsPort = at.tlsPort;
    this.#close = close;
  }

  /** @throws Error when an address cannot be listened on, or certificate and key are not usable */
  static async open({ listen, tls, clock, log }: FrontDoorOptions): Promise<FrontDoor> {
    await using scope = new Scope();
    const listener = new HttpListener();
    const { address, family, port } = await listener.listen(listen);
    let front: TlsFront | undefined;
    scope.defer(() => front?.close()); // after the listener's requests have ended, some of which came by it
    scope.defer(() => listener.close());
    front = tls === undefined ? undefined : await TlsFront.open(listener.server, tls, clock, log);
    const url = `http://${family === "IPv6" ? `[${address}]` : address}:${port}`;
    const owned = scope.move();
    return new FrontDoor(listener, { url, port, tlsPort: front?.port }, () => owned.close());
  }

  /** Node's server behind both ports, for upgrades. */
  get server(): Server {
    return this.#listener.server;
  }

  /** Gives all requests to `serve`, those that waited first. */
  serve(serve: RequestListener): void {
    this.#listener.serve(serve);
  }

  /** Requests under way get up to 3 s. Idempotent. */
  close(): Promise<void> {
    return this.#close();
  }
}
