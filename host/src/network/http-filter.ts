import { createServer, type IncomingMessage, request, type Server, type ServerResponse } from "node:http";
import type { Socket } from "node:net";
import { HOP_BY_HOP } from "@torpor/base";
import type { GateConnections } from "./gate-connections.ts";
import { destinationOf, stillAllows } from "./gate-destination.ts";
import { CONNECT_TIMEOUT_MS, type FilterOptions } from "./tls-filter.ts";

const HEAD_TIMEOUT_MS = 10_000;
/** A server that says nothing for this long is given up. */
const SILENCE_MS = 300_000;

/** Requests a client may send before the first of them is answered; apt sends ten. A connection with more is reset. */
const MAX_PIPELINED = 64;
/** Requests of one connection, after which it ends. */
const MAX_REQUESTS = 1_000;

/** A client's connection. */
type OpenTaken = NonNullable<ReturnType<GateConnections["take"]>> & {
  /** Where its requests went: names and the addresses they led to. */
  destinations: Map<string, string>;
  /** Requests that wait for the ones before them. */
  waiting: number;
  /** Resolves when the last of all is answered, or its client gone. Never rejects. */
  turn: Promise<void>;
};

/**
 * Port 80 of sandboxes whose policy has names: an HTTP proxy that judges the Host of each request and writes it anew, so
 * that it and the server cannot read it differently. Speaks HTTP and nothing else; no upgrades. Requests of one connection
 * go on one after the other, so that it holds no more than one connection of the host's.
 *
 * @param port of the servers; other than 80 in tests alone
 */
export function createHttpFilter(options: FilterOptions, port = 80): Server {
  const taken = new WeakMap<Socket, OpenTaken>();
  const server = createServer({
    keepAliveTimeout: 30_000,
    headersTimeout: HEAD_TIMEOUT_MS,
    requestTimeout: 0,
  });
  server.maxRequestsPerSocket = MAX_REQUESTS;
  server.on("connection", (socket: Socket) => {
    const one = options.connections.take(socket);
    if (one !== undefined)
      taken.set(socket, { ...one, destinations: new Map(), waiting: 0, turn: Promise.resolve() });
  });
  server.on("request", (incoming, outgoing) => {
    const one = taken.get(incoming.socket);
    if (one === undefined) return void incoming.socket.destroy();
    if (one.waiting >= MAX_PIPELINED) return void incoming.socket.resetAndDestroy();
    const { socket } = incoming;
    const closed = new Promise<void>((resolve) => outgoing.once("close", resolve));
    one.waiting += 1;
    one.turn = one.turn.then(async () => {
      one.waiting -= 1;
      if (socket.destroyed) return;
      forward(incoming, outgoing, one, options, port).catch((error: unknown) =>
        answerPlainly(outgoing, 502, `the request could not be passed on: ${String(error)}`),
      );
      await closed;
    });
  });
  server.on("clientError", (_error, socket) => socket.destroy());
  return server;
}

async function forward(
  incoming: IncomingMessage,
  outgoing: ServerResponse,
  { slot, note, destinations }: OpenTaken,
  { connections, upstream, onRefused }: FilterOptions,
  port: number,
): Promise<void> {
  const policy = connections.policies.of(slot);
  if (policy === undefined) return void incoming.socket.resetAndDestroy();
  const refuse = (why: string): void => {
    onRefused(slot, why);
    answerPlainly(outgoing, 403, why);
  };
  const target = incoming.url ?? "";
  // A whole URL as the target would go before the Host.
  if (!target.startsWith("/") && target !== "*")
    return refuse("the request names a whole URL as to a proxy; ask for the path alone");
  const hosts = incoming.headersDistinct["host"] ?? [];
  const name = /^([^:]+?)\.?(?::80)?$/.exec(hosts[0] ?? "")?.[1]?.toLowerCase();
  if (hosts.length !== 1 || name === undefined) return refuse("the request gives no Host of port 80");
  const destination = await destinationOf(name, slot, policy, upstream);
  if ("refusal" in destination) return refuse(destination.refusal);
  const [address = ""] = destination.addresses;
  destinations.set(name, address);
  note((changed) => [...destinations].every(([one, itsAddress]) => stillAllows(changed, one, itsAddress)));
  connections.recheck(slot); // it may have changed while the name was looked up
  const onward = request({
    host: address,
    port,
    method: incoming.method,
    path: target,
    agent: false,
    setHost: false,
  });
  for (const [header, values] of headersOf(incoming.rawHeaders)) onward.setHeader(header, values);
  // Said outright: without it the body of a GET would go on unframed, and be read as the next request.
  if (incoming.headers["transfer-encoding"] !== undefined) onward.setHeader("transfer-encoding", "chunked");
  onward.setTimeout(SILENCE_MS, () => onward.destroy(new Error("the server has been silent for too long")));
  const connecting = setTimeout(
    () => onward.destroy(new Error("the server takes no connection")),
    CONNECT_TIMEOUT_MS,
  );
  onward.on("socket", (socket) => socket.once("connect", () => clearTimeout(connecting)));
  onward.on("error", (error) => {
    clearTimeout(connecting);
    answerPlainly(outgoing, 502, `${name} (${address}) could not be asked: ${error.message}`);
  });
  onward.on("response", (response) => passBack(response, outgoing));
  outgoing.on("close", () => {
    clearTimeout(connecting);
    onward.destroy();
  });
  incoming.on("error", () => onward.destroy());
  incoming.pipe(onward);
}

function passBack(response: IncomingMessage, outgoing: ServerResponse): void {
  response.on("error", () => outgoing.destroy());
  try {
    outgoing.sendDate = false;
    for (const [header, values] of headersOf(response.rawHeaders)) outgoing.setHeader(header, values);
    outgoing.writeHead(response.statusCode ?? 502, response.statusMessage);
  } catch (error) {
    response.destroy();
    return answerPlainly(outgoing, 502, `the server's answer cannot be passed on: ${String(error)}`);
  }
  response.pipe(outgoing);
}

/** Headers that go on, values of one name together, in order. */
function headersOf(raw: readonly string[]): Map<string, string[]> {
  const named = (index: number): string => (raw[index] ?? "").toLowerCase();
  const dropped = new Set(HOP_BY_HOP);
  for (let index = 0; index < raw.length; index += 2)
    if (named(index) === "connection")
      for (const token of (raw[index + 1] ?? "").toLowerCase().split(",")) dropped.add(token.trim());
  for (const kept of ["host", "content-length"]) dropped.delete(kept);
  const headers = new Map<string, string[]>();
  for (let index = 0; index < raw.length; index += 2) {
    if (dropped.has(named(index))) continue;
    const values = headers.get(named(index)) ?? [];
    values.push(raw[index + 1] ?? "");
    headers.set(named(index), values);
  }
  return headers;
}

/** A refusal or failure in words. One that comes when the answer has begun can only cut it short. */
function answerPlainly(outgoing: ServerResponse, status: number, why: string): void {
  if (outgoing.headersSent || outgoing.destroyed) return void outgoing.destroy();
  const body = `torpor: ${why}\n`;
  for (const header of outgoing.getHeaderNames()) outgoing.removeHeader(header);
  outgoing
    .writeHead(status, {
      "content-type": "text/plain; charset=utf-8",
      "content-length": Buffer.byteLength(body),
      connection: "close",
    })
    .end(body);
}
