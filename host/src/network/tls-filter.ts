import { connect, createServer, type Server, type Socket } from "node:net";
import { type ClientHello, ClientHelloReader } from "./client-hello.ts";
import type { DnsUpstream } from "./dns-upstream.ts";
import type { GateConnections } from "./gate-connections.ts";
import { destinationOf, stillAllows } from "./gate-destination.ts";

/** A client says hello at once. */
const HELLO_TIMEOUT_MS = 10_000;
export const CONNECT_TIMEOUT_MS = 15_000;
/** Both ends of a splice are asked for a sign of life after this long without a word. */
const KEEP_ALIVE_MS = 60_000;
/** TLS alert, fatal, access_denied (RFC 8446, 6.2): a client that shows it tells its user more than a reset would. */
const ACCESS_DENIED = Buffer.from([21, 3, 3, 0, 2, 2, 49]);

export interface FilterOptions {
  connections: GateConnections;
  upstream: Pick<DnsUpstream, "addressesOf">;
  /** Told of each refusal. */
  onRefused: (slot: number, why: string) => void;
}

/**
 * Port 443 of sandboxes whose policy has names: looks at the server name of the ClientHello, and then carries bytes,
 * which it cannot read. No server name, or one that may be another (ECH), is refused.
 *
 * @param port of the servers; other than 443 in tests alone
 */
export function createTlsFilter(options: FilterOptions, port = 443): Server {
  return createServer({ allowHalfOpen: true, noDelay: true, pauseOnConnect: true }, (socket) => {
    const taken = options.connections.take(socket);
    if (taken === undefined) return;
    serve(socket, taken, options, port).catch(() => socket.resetAndDestroy());
  });
}

async function serve(
  socket: Socket,
  { slot, note }: NonNullable<ReturnType<GateConnections["take"]>>,
  { connections, upstream, onRefused }: FilterOptions,
  port: number,
): Promise<void> {
  const refuse = (why: string): void => {
    onRefused(slot, why);
    socket.end(ACCESS_DENIED, () => socket.destroy());
  };
  const { hello, received } = await readHello(socket);
  if (hello === undefined) return void socket.destroy();
  if ("problem" in hello) return refuse(`port 443 ${hello.problem}`);
  if (hello.isEncrypted)
    return refuse(
      "the ClientHello is encrypted (ECH), so that its server name says nothing; turn ECH off in the client",
    );
  const { serverName } = hello;
  if (serverName === undefined) return refuse("the ClientHello names no server (SNI)");
  const policy = connections.policies.of(slot);
  if (policy === undefined) return void socket.resetAndDestroy();
  const destination = await destinationOf(serverName, slot, policy, upstream);
  if ("refusal" in destination) return refuse(destination.refusal);
  const remote = await connectToOne(destination.addresses, port);
  if (remote === undefined || socket.destroyed) {
    remote?.socket.destroy();
    return void socket.resetAndDestroy();
  }
  const { address } = remote;
  note((changed) => stillAllows(changed, serverName, address));
  connections.recheck(slot); // it may have changed while the name was looked up
  splice(socket, remote.socket, received);
}

/** @returns no hello when the client left or took too long */
function readHello(socket: Socket): Promise<{ hello: ClientHello | undefined; received: Buffer[] }> {
  const reader = new ClientHelloReader();
  const received: Buffer[] = [];
  return new Promise((resolve) => {
    const settle = (hello: ClientHello | undefined): void => {
      clearTimeout(timer);
      socket.off("data", onData).off("close", onEnd).off("end", onEnd);
      socket.pause();
      resolve({ hello, received });
    };
    const onData = (chunk: Buffer): void => {
      received.push(chunk);
      const hello = reader.push(chunk);
      if (hello !== undefined) settle(hello);
    };
    const onEnd = (): void => settle(undefined);
    const timer = setTimeout(() => settle(undefined), HELLO_TIMEOUT_MS);
    socket.on("data", onData).on("close", onEnd).on("end", onEnd);
    socket.resume();
  });
}

/** Tries the addresses in turn. @returns undefined when none takes the connection */
async function connectToOne(
  addresses: readonly string[],
  port: number,
): Promise<{ socket: Socket; address: string } | undefined> {
  const until = performance.now() + CONNECT_TIMEOUT_MS;
  for (const address of addresses.slice(0, 4)) {
    const left = until - performance.now();
    if (left <= 0) return undefined;
    const socket = await new Promise<Socket | undefined>((resolve) => {
      const trying = connect({ host: address, port, allowHalfOpen: true, noDelay: true });
      const timer = setTimeout(() => trying.destroy(), left);
      trying.on("error", () => {});
      trying.once("close", () => {
        clearTimeout(timer);
        resolve(undefined);
      });
      trying.once("connect", () => {
        clearTimeout(timer);
        resolve(trying);
      });
    });
    if (socket !== undefined) return { socket, address };
  }
  return undefined;
}

/** Carries bytes both ways, each as fast as its reader; an end is passed on, a failure ends both. */
function splice(client: Socket, remote: Socket, received: readonly Buffer[]): void {
  for (const socket of [client, remote]) socket.setKeepAlive(true, KEEP_ALIVE_MS);
  client.once("close", () => remote.destroy());
  remote.once("close", () => {
    if (remote.errored === null) client.destroySoon();
    else client.resetAndDestroy();
  });
  for (const chunk of received) remote.write(chunk);
  client.pipe(remote);
  remote.pipe(client);
}
