import type { IncomingMessage } from "node:http";
import type { Duplex } from "node:stream";
import { CodedError, guestPathSchema, type StartRequest } from "@torpor/protocol";
import { type RawData, type WebSocket, WebSocketServer } from "ws";
import { z } from "zod";
import type { Authenticator } from "../auth/authenticator.ts";
import type { KeyWatch } from "../auth/key-watch.ts";
import { newExecId } from "../guest/exec.ts";
import { GuestClient } from "../guest/guest-client.ts";
import { unbrokenEvents } from "../guest/unbroken-events.ts";
import { checkInput } from "../http/check-input.ts";
import { noteDenial } from "../ledger/note-denial.ts";
import { userName } from "./file-content-routes.ts";
import type { RouteDeps } from "./route-deps.ts";

const PATH_PATTERN = /^\/v1\/sandboxes\/([^/]+)\/pty$/;

const ROUTE = "GET /v1/sandboxes/{id}/pty";

const cells = z.coerce
  .number({ error: "must be a whole number" })
  .int("must be a whole number")
  .min(1)
  .max(1_000);

/** Query of the terminal's WebSocket. */
const terminalQuery = z.strictObject({
  cols: cells.default(80),
  rows: cells.default(24),
  cmd: z
    .string()
    .min(1)
    .max(32_768)
    .optional()
    .describe("Run by a login shell. Default: an interactive login shell."),
  cwd: guestPathSchema.optional(),
  user: userName,
});

const controlSchema = z.strictObject({ type: z.literal("resize"), cols: cells, rows: cells });

/** A message larger than this is refused by the WebSocket itself, bytes. */
const MAX_MESSAGE_BYTES = 1024 * 1024;
/** Typed input that waits for the sandbox; beyond it the connection is not read until it has drained, bytes. */
const MAX_WAITING_INPUT_BYTES = 256 * 1024;
const INPUT_CHUNK_BYTES = 16 * 1024;
/** A client whose key is no longer good has this long to close its side, milliseconds. */
const REFUSED_GRACE_MS = 1_000;
/** A client that has gone without a word is noticed within two of these, milliseconds. */
const PING_EVERY_MS = 20_000;

/**
 * Serves `GET /v1/sandboxes/{id}/pty`: a WebSocket whose binary messages are the terminal's bytes both ways. The client
 * sends text `{type: "resize", cols, rows}`; the server ends with text `{type: "exit", exit_code, signal}` and closes.
 * A refusal is an ordinary HTTP answer with the error envelope. Leaving ends the command.
 */
export function serveTerminals(
  deps: RouteDeps,
  authenticator: Authenticator,
  keyWatch: KeyWatch,
): { open(incoming: IncomingMessage, connection: Duplex, head: Buffer): Promise<void>; close(): void } {
  const sockets = new WebSocketServer({
    noServer: true,
    maxPayload: MAX_MESSAGE_BYTES,
    perMessageDeflate: false,
  });
  async function open(incoming: IncomingMessage, connection: Duplex, head: Buffer): Promise<void> {
    const url = new URL(incoming.url ?? "", "http://server");
    const id = PATH_PATTERN.exec(url.pathname)?.[1];
    if (id === undefined)
      throw new CodedError(
        "not_found",
        `there is no WebSocket at ${url.pathname.slice(0, 200)}; terminals are at /v1/sandboxes/{id}/pty, programs in a sandbox at /v1/sandboxes/{id}/ports/{port}/`,
      );
    const caller = await authenticator.authenticate(incoming.headers, "sandbox:exec", ROUTE);
    const query = checkInput(terminalQuery, Object.fromEntries(url.searchParams), "query");
    const sandboxId = decodeURIComponent(id);
    const { record, host } = await deps.sandboxes
      .requireRunning(caller.scope, sandboxId)
      .catch((error: unknown) => {
        const asked = { key: caller.key, route: ROUTE, names: { id: sandboxId }, body: undefined };
        if (error instanceof CodedError) noteDenial(deps.denials, asked, error);
        throw error;
      });
    deps.activity.note(record);
    sockets.handleUpgrade(incoming, connection, head, (socket) => {
      const terminal = new Terminal(socket, new GuestClient(host.client, record), () =>
        deps.activity.note(record),
      );
      socket.once(
        "close",
        keyWatch.hold(caller.key, (refusal) => terminal.refuse(refusal)),
      );
      const startedAt = deps.clock.monotonic();
      void terminal.run(query).then((outcome) =>
        deps.log.info({
          op: "pty",
          outcome,
          durationMs: deps.clock.monotonic() - startedAt,
          sandboxId: record.id,
          tenant: record.tenant,
        }),
      );
    });
  }

  return {
    open,
    close() {
      for (const socket of sockets.clients) socket.close(1001, "the server is stopping");
      sockets.close();
    },
  };
}

/** One terminal: the WebSocket on one side, a process with a pty on the other. */
class Terminal {
  readonly #socket: WebSocket;
  readonly #guest: GuestClient;
  readonly #onActivity: () => void;
  readonly #left = new AbortController();
  readonly #execId = newExecId();
  #input: Promise<void> = Promise.resolve();
  #waitingBytes = 0;
  #started = false;

  constructor(socket: WebSocket, guest: GuestClient, onActivity: () => void) {
    this.#socket = socket;
    this.#guest = guest;
    this.#onActivity = onActivity;
  }

  /** Runs until the command or the client ends. Never throws. */
  async run({ cols, rows, cmd, cwd, user }: z.output<typeof terminalQuery>): Promise<string> {
    this.#socket.on("close", () => this.#left.abort());
    this.#socket.on("error", () => this.#left.abort());
    this.#socket.on("message", (data, isBinary) => this.#receive(data, isBinary));
    const stopPinging = this.#ping();
    const process: StartRequest["process"] = {
      cmd: "/bin/bash",
      args: cmd === undefined ? ["-i", "-l"] : ["-l", "-c", cmd],
      envs: { TERM: "xterm-256color", LANG: "C.UTF-8", LC_ALL: "C.UTF-8" },
    };
    if (cwd !== undefined) process.cwd = cwd;
    const torpor: NonNullable<StartRequest["torpor"]> = {
      execId: this.#execId,
      killOnDisconnect: true,
      resumable: true,
    };
    if (user !== undefined) torpor.user = user;
    try {
      const start = { process, pty: { size: { cols, rows } }, stdin: true, torpor };
      for await (const event of unbrokenEvents(this.#guest, { start }, this.#left.signal)) {
        if (event.start !== undefined) this.#started = true;
        const bytes = event.data?.pty ?? event.data?.stdout;
        if (bytes !== undefined) await this.#send(Buffer.from(bytes, "base64"));
        if (event.end !== undefined) {
          const exitCode =
            event.end.torpor === undefined ? (event.end.exitCode ?? null) : event.end.torpor.exitCode;
          await this.#finish({ type: "exit", exit_code: exitCode, signal: event.end.torpor?.signal ?? null });
          return "exited";
        }
      }
      throw new Error("the sandbox ended the terminal without saying how");
    } catch (error) {
      if (this.#left.signal.aborted) return "client left";
      const message =
        error instanceof CodedError
          ? error.message
          : "the connection into the sandbox broke: it was hibernated, in which case the command goes on when it wakes if its memory was kept, or it has ended";
      await this.#finish({
        type: "error",
        code: error instanceof CodedError ? error.code : "guest_unavailable",
        message,
      }).catch(() => {});
      return "failed";
    } finally {
      stopPinging();
    }
  }

  /** Ends it, and with it the command, because its API key is no longer good. */
  refuse({ code, message }: CodedError): void {
    this.#left.abort();
    this.#socket.send(JSON.stringify({ type: "error", code, message }), () => {});
    this.#socket.close(1008, "the API key is no longer good");
    setTimeout(() => this.#socket.terminate(), REFUSED_GRACE_MS).unref();
  }

  /** Resolves once the bytes have left, so that a client that does not read slows the command down. */
  #send(data: Buffer | string): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#socket.send(data, { binary: typeof data !== "string" }, (error) =>
        error ? reject(error) : resolve(),
      );
    });
  }

  async #finish(last: unknown): Promise<void> {
    await this.#send(JSON.stringify(last));
    this.#socket.close(1000);
  }

  #receive(data: RawData, isBinary: boolean): void {
    this.#onActivity();
    const bytes = Array.isArray(data)
      ? Buffer.concat(data)
      : Buffer.isBuffer(data)
        ? data
        : Buffer.from(data);
    if (!isBinary) return this.#control(bytes.toString("utf8"));
    this.#waitingBytes += bytes.length;
    if (this.#waitingBytes > MAX_WAITING_INPUT_BYTES) this.#socket.pause();
    this.#enqueue(async () => {
      for (let offset = 0; offset < bytes.length; offset += INPUT_CHUNK_BYTES) {
        const pty = bytes.subarray(offset, offset + INPUT_CHUNK_BYTES).toString("base64");
        await this.#guest.input(this.#selector(), { pty }, this.#left.signal);
      }
      this.#waitingBytes -= bytes.length;
      if (this.#waitingBytes <= MAX_WAITING_INPUT_BYTES) this.#socket.resume();
    });
  }

  #control(text: string): void {
    let message;
    try {
      message = controlSchema.safeParse(JSON.parse(text));
    } catch {
      message = undefined;
    }
    if (message?.success !== true) {
      this.#socket.close(1008, 'text messages must be {"type":"resize","cols":80,"rows":24}');
      return;
    }
    const { cols, rows } = message.data;
    this.#enqueue(() =>
      this.#guest.unary(
        "process.Process/Update",
        { process: this.#selector(), pty: { size: { cols, rows } } },
        this.#left.signal,
      ),
    );
  }

  #selector(): { torpor: { execId: string } } {
    return { torpor: { execId: this.#execId } };
  }

  /** Input keeps its order: each step waits for the one before. What the guest refuses, the command's end explains. */
  #enqueue(step: () => Promise<unknown>): void {
    this.#input = this.#input
      .then(async () => {
        for (let tries = 0; !this.#started && tries < 200 && !this.#left.signal.aborted; tries += 1)
          await new Promise((resolve) => setTimeout(resolve, 10));
        await step();
      })
      .catch(() => {});
  }

  #ping(): () => void {
    let answered = true;
    this.#socket.on("pong", () => (answered = true));
    const timer = setInterval(() => {
      if (!answered) this.#socket.terminate();
      answered = false;
      this.#socket.ping();
    }, PING_EVERY_MS);
    return () => clearInterval(timer);
  }
}
