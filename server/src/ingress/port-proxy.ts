import type { IncomingHttpHeaders, IncomingMessage, OutgoingHttpHeaders, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import { pipeline } from "node:stream/promises";
import { joinConnections, responseInsteadOfUpgrade, switchProtocols } from "@torpor/base";
import { CODE_PORT, CodedError, GUEST_PORT, PORT_HEADERS } from "@torpor/protocol";
import { answerError } from "../host/answer-error.ts";
import type { HostClient } from "../host/host-client.ts";
import type { SandboxRecord } from "../store/sandbox-record.ts";
import { type Forwarding, requestHeaders } from "./port-headers.ts";

/** A port of a sandbox, and how it is reached. Which sandbox, its record says. */
export interface PortTarget {
  client: HostClient;
  port: number;
  /** Path and query as the program sees them. */
  path: string;
  /** Whether the sandbox may be woken for it. */
  wake: boolean;
  /** Whether it counts as no use of the sandbox. Default false. */
  isPassive?: boolean;
  forwarding: Forwarding;
  answerHeaders: (headers: IncomingHttpHeaders) => OutgoingHttpHeaders;
  /**
   * What is passed on of an answer's body until the signal says that the client has left; an error cuts the answer off. Undefined
   * for an answer that is passed on as it comes. Default: all are.
   */
  bodyOf?: (answer: IncomingMessage, signal: AbortSignal) => AsyncIterable<Uint8Array> | undefined;
}

/** A program's answer begins within this, milliseconds. */
const HEAD_WITHIN_MS = 300_000;
/** A connection on which nothing moves, either way, is given up after this, milliseconds. */
const IDLE_MS = 600_000;
/** Connections to the ports of one sandbox at a time. */
const MAX_CONNECTIONS = 256;
/** May be sent again when a kept connection to the host turns out dead. */
const REPEATABLE = new Set(["GET", "HEAD", "OPTIONS"]);

/** @throws CodedError for a number that is no port, and for the ports that are the sandbox's own services' */
export function requirePort(text: string): number {
  const port = /^\d{1,5}$/.test(text) ? Number(text) : 0;
  if (port < 1 || port > 65_535)
    throw new CodedError(
      "invalid_request",
      `${text.slice(0, 20)} is no port: it must be a number from 1 to 65535`,
      {
        details: { issues: [{ path: "port", message: "must be a number from 1 to 65535" }] },
      },
    );
  if (port === GUEST_PORT || port === CODE_PORT)
    throw new CodedError(
      "permission_denied",
      `port ${port} is that of the sandbox's own agent, which the exec, files and code routes reach; publish another`,
    );
  return port;
}

/** Passes requests and upgraded connections to ports of sandboxes, both ways as they come. */
export class PortProxy {
  readonly #connections = new Map<string, number>();
  readonly #tunnels = new Set<Duplex>();

  /**
   * Passes one request. Resolves when the answer is sent, or cut off because one of the two ends left.
   *
   * @throws CodedError before anything was sent: port_not_open, wrong_state for a sandbox that sleeps and is not to be
   *   woken, sandbox_ended, rate_limited, host_unavailable
   */
  async forward(
    record: SandboxRecord,
    target: PortTarget,
    incoming: IncomingMessage,
    outgoing: ServerResponse,
  ): Promise<void> {
    const release = this.#take(record);
    const left = new AbortController();
    const onClose = (): void => left.abort();
    outgoing.once("close", onClose);
    // Node ends a connection on which this passes, and sets its own limit when the answer is sent.
    incoming.socket.setTimeout(IDLE_MS);
    try {
      const { method = "GET" } = incoming;
      const answer = await target.client.openPort(record, target.port, method, target.path, {
        headers: headersOf(target, incoming),
        ...(hasBody(incoming) ? { body: incoming } : {}),
        headTimeoutMs: HEAD_WITHIN_MS,
        repeatable: REPEATABLE.has(method),
        signal: left.signal,
      });
      await this.#answer(record, target, answer, outgoing, left.signal);
    } finally {
      outgoing.off("close", onClose);
      release();
    }
  }

  /** As {@link PortProxy.forward}, for a request that asks for an upgrade. Resolves when the connection has ended. */
  async tunnel(
    record: SandboxRecord,
    target: PortTarget,
    incoming: IncomingMessage,
    connection: Duplex,
    head: Buffer,
  ): Promise<void> {
    if (hasBody(incoming))
      throw new CodedError("invalid_request", "a request for an upgrade has no body; leave it out");
    const release = this.#take(record);
    const left = new AbortController();
    const onClose = (): void => left.abort();
    connection.once("close", onClose);
    try {
      const { upgrade = "websocket" } = incoming.headers;
      const outcome = await target.client.upgradePort(
        record,
        target.port,
        incoming.method ?? "GET",
        target.path,
        { headers: { ...headersOf(target, incoming), connection: "Upgrade", upgrade }, signal: left.signal },
      );
      if (outcome.kind === "answered") {
        if (outcome.answer.headers[PORT_HEADERS.isHostsOwn] !== undefined)
          throw await refusal(record, target, outcome.answer);
        const instead = responseInsteadOfUpgrade(incoming, connection);
        await this.#answer(record, target, outcome.answer, instead, left.signal);
        return;
      }
      this.#tunnels.add(connection);
      switchProtocols(connection, {
        ...textHeaders(target.answerHeaders(outcome.headers)),
        connection: "Upgrade",
        upgrade: outcome.headers.upgrade ?? upgrade,
      });
      if (head.length > 0) outcome.socket.write(head);
      if (outcome.head.length > 0) connection.write(outcome.head);
      // What an HTTP server's upgrade gives is a socket.
      await joinConnections(connection as Socket, outcome.socket, IDLE_MS);
    } finally {
      this.#tunnels.delete(connection);
      connection.off("close", onClose);
      release();
    }
  }

  /** Cuts the connections that have left HTTP; the others are the server's to end. */
  close(): void {
    for (const tunnel of this.#tunnels) tunnel.destroy();
  }

  async #answer(
    record: SandboxRecord,
    target: PortTarget,
    answer: IncomingMessage,
    outgoing: ServerResponse,
    left: AbortSignal,
  ): Promise<void> {
    if (answer.headers[PORT_HEADERS.isHostsOwn] !== undefined) throw await refusal(record, target, answer);
    try {
      // Refused meanwhile, because its key is no longer good, it has its answer already.
      if (outgoing.destroyed || outgoing.writableEnded)
        throw new CodedError("client_closed_request", "the caller has left");
      outgoing.writeHead(answer.statusCode ?? 502, target.answerHeaders(answer.headers));
    } catch (error) {
      answer.destroy(); // or it would hold its connection to the sandbox, and the sandbox awake
      throw error;
    }
    outgoing.flushHeaders(); // the first event of a stream may be minutes away
    const body = target.bodyOf?.(answer, left);
    if (body !== undefined) {
      answer.on("error", () => {}); // heard by whoever reads the body
      await pipeline(body, outgoing).catch(() => outgoing.destroy());
      return;
    }
    await new Promise<void>((resolve) => {
      answer.on("error", () => outgoing.destroy());
      answer.once("close", () => {
        if (!answer.complete) outgoing.destroy(); // half an answer must not look whole
      });
      outgoing.once("finish", resolve);
      outgoing.once("close", () => {
        answer.destroy();
        resolve();
      });
      answer.pipe(outgoing);
    });
  }

  #take({ id }: SandboxRecord): () => void {
    const open = this.#connections.get(id) ?? 0;
    if (open >= MAX_CONNECTIONS)
      throw new CodedError(
        "rate_limited",
        `sandbox ${id} has ${MAX_CONNECTIONS} connections to its ports open, which is the most; close some and try again`,
      );
    this.#connections.set(id, open + 1);
    return () => {
      const now = (this.#connections.get(id) ?? 1) - 1;
      if (now === 0) this.#connections.delete(id);
      else this.#connections.set(id, now);
    };
  }
}

function headersOf(target: PortTarget, incoming: IncomingMessage): OutgoingHttpHeaders {
  const headers = requestHeaders(incoming, target.forwarding);
  if (target.isPassive === true) headers["x-torpor-passive"] = "1";
  if (!target.wake) headers[PORT_HEADERS.wake] = "never";
  return headers;
}

/** The host's own answer, with what a visitor can do about it. */
async function refusal(
  record: SandboxRecord,
  { port }: PortTarget,
  answer: IncomingMessage,
): Promise<CodedError> {
  const error = await answerError(answer, `a request to port ${port} of sandbox ${record.id}`);
  if (error.code !== "guest_unavailable" || error.details["port"] === undefined) return error;
  return new CodedError(
    "port_not_open",
    `nothing answers on port ${port} of sandbox ${record.id}; start the program, let it listen on 0.0.0.0 rather than 127.0.0.1, and try again`,
    { details: { port, cause: error.message }, cause: error },
  );
}

function hasBody({ headers }: IncomingMessage): boolean {
  return headers["transfer-encoding"] !== undefined || Number(headers["content-length"] ?? 0) > 0;
}

function textHeaders(headers: OutgoingHttpHeaders): Record<string, string | string[]> {
  return Object.fromEntries(
    Object.entries(headers).flatMap(([name, value]) =>
      value === undefined ? [] : [[name, Array.isArray(value) ? value : String(value)]],
    ),
  );
}
