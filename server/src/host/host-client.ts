import { Agent, type IncomingMessage, type OutgoingHttpHeaders, request as httpRequest } from "node:http";
import type { Readable } from "node:stream";
import { requestUpgrade, type UpgradeOutcome } from "@torpor/base";
import {
  CodedError,
  type HostEvents,
  type HostHealth,
  type Machine,
  type MachineSample,
  type MachineSnapshot,
  type MachineSpec,
  type MachineUpdate,
  type SnapshotDefaults,
  type Template,
} from "@torpor/protocol";
import type { HostScope, ServerScope } from "../auth/tenant-scope.ts";
import type { SnapshotRecord } from "../store/snapshot-store.ts";
import { answerError } from "./answer-error.ts";
import type { OwnedMachine } from "./owned-machine.ts";

export interface HostAddress {
  /** `unix:/path/to/socket` or `http://host:port`. */
  url: string;
  /** Bearer token of the host's API. */
  token: string;
}

export interface CallOptions {
  headers?: OutgoingHttpHeaders;
  /** A buffer is sent with its length and can be sent again; a stream is sent as it comes, once. */
  body?: Buffer | Readable;
  /** Until the answer's head. Default 30,000; 0 for no limit. */
  headTimeoutMs?: number;
  signal?: AbortSignal;
  /** Whether sending it twice does no harm: then a kept-alive connection that turns out dead is tried once more. */
  repeatable?: boolean;
}

/** Largest JSON answer read into memory, bytes. */
const MAX_JSON_BYTES = 64 * 1024 * 1024;
const DEFAULT_HEAD_TIMEOUT_MS = 30_000;
/** A restore on a busy machine takes seconds; a create that takes longer than this is undone. */
const CREATE_TIMEOUT_MS = 120_000;
const DELETE_TIMEOUT_MS = 60_000;
/** A sandbox may have to be woken first. */
const UPGRADE_TIMEOUT_MS = 120_000;
/** Writing or reading an image of gigabytes on a slow disk. */
const IMAGE_TIMEOUT_MS = 300_000;

/**
 * HTTP client of one host. Connections are kept open, since opening one costs as much as a call. Failures are
 * `CodedError`s: the host's own envelope, or `host_unavailable` when it does not answer.
 */
export class HostClient {
  readonly #agent = new Agent({ keepAlive: true, maxFreeSockets: 64, noDelay: true });
  readonly #target: { socketPath: string } | { host: string; port: number };
  readonly #url: string;
  readonly #authorization: string;

  constructor(address: HostAddress) {
    this.#url = address.url;
    this.#authorization = `Bearer ${address.token}`;
    if (address.url.startsWith("unix:")) this.#target = { socketPath: address.url.slice("unix:".length) };
    else {
      const { hostname, port } = new URL(address.url);
      this.#target = { host: hostname.replace(/^\[|\]$/g, ""), port: Number(port === "" ? 80 : port) };
    }
  }

  health(signal?: AbortSignal): Promise<HostHealth> {
    return this.#json("GET", "/v1/health", { repeatable: true, headTimeoutMs: 5_000, ...withSignal(signal) });
  }

  /**
   * Tells the host that such a machine is about to be asked for, so that it gets one ready meanwhile. A hint: nothing is
   * made by it, and nobody waits for the answer.
   */
  expectMachine({ template, diskMb }: { template: string; diskMb: number }): void {
    const query = `template=${encodeURIComponent(template)}&disk_mb=${diskMb}`;
    this.#call("POST", `/v1/expected?${query}`, { headTimeoutMs: 2_000 }).then(
      (answer) => answer.resume(),
      () => {}, // the create itself tells what is wrong with the host
    );
  }

  /** Makes the machine, or gives the one of this id that exists already. Resolves when it is usable. */
  putMachine(machine: OwnedMachine, spec: MachineSpec): Promise<Machine> {
    return this.#json("PUT", machinePath(machine), {
      body: jsonBody(spec),
      repeatable: true,
      headTimeoutMs: CREATE_TIMEOUT_MS,
    });
  }

  async listMachines(_scope: HostScope, signal?: AbortSignal): Promise<Machine[]> {
    const answer = await this.#json<{ machines?: Machine[] }>("GET", "/v1/machines", {
      repeatable: true,
      ...withSignal(signal),
    });
    // An unreadable list is not an empty list.
    if (!Array.isArray(answer.machines))
      throw new CodedError(
        "host_unavailable",
        `host ${this.#url} answered its machine list without machines`,
      );
    return answer.machines;
  }

  /** @returns undefined when the host says that it has no such machine. */
  async findMachine(machine: OwnedMachine, signal?: AbortSignal): Promise<Machine | undefined> {
    return await unlessNotFound(
      this.#json<Machine>("GET", machinePath(machine), {
        repeatable: true,
        headTimeoutMs: 5_000,
        ...withSignal(signal),
      }),
    );
  }

  /**
   * The machine once it stands still, neither paused nor on its way to another state, or as it is after `waitMs`. Wakes
   * nothing. @returns undefined when the host says that it has no such machine.
   */
  async settledMachine(
    machine: OwnedMachine,
    waitMs: number,
    signal?: AbortSignal,
  ): Promise<Machine | undefined> {
    return await unlessNotFound(
      this.#json<Machine>("GET", `${machinePath(machine)}?settled_within_ms=${waitMs}`, {
        repeatable: true,
        headTimeoutMs: waitMs + 5_000,
        ...withSignal(signal),
      }),
    );
  }

  /** What it used between two times (Unix milliseconds), by samples, one of now included while it runs. Wakes nothing. */
  async samples(
    machine: OwnedMachine,
    { from, to }: { from: number; to: number },
    signal?: AbortSignal,
  ): Promise<MachineSample[]> {
    const path = `${machinePath(machine)}/metrics?from_unix_ms=${from}&to_unix_ms=${to}`;
    const options = { repeatable: true, ...withSignal(signal) };
    return (await this.#json<{ samples: MachineSample[] }>("GET", path, options)).samples;
  }

  updateMachine(machine: OwnedMachine, update: MachineUpdate): Promise<Machine> {
    return this.#json("PATCH", machinePath(machine), { body: jsonBody(update), repeatable: true });
  }

  /** Pauses, resumes, hibernates or wakes the machine; joins one under way. Idempotent. */
  moveMachine(machine: OwnedMachine, verb: "pause" | "resume" | "hibernate" | "wake"): Promise<Machine> {
    return this.#json("POST", `${machinePath(machine)}/${verb}`, {
      repeatable: true,
      headTimeoutMs: IMAGE_TIMEOUT_MS,
    });
  }

  /** Writes a snapshot; the machine goes on. The same snapshot id again gives the one that exists. */
  takeSnapshot(
    machine: OwnedMachine,
    snapshot: { id: string; name: string | null; copies: number; defaults?: SnapshotDefaults },
  ): Promise<MachineSnapshot> {
    return this.#json("POST", `${machinePath(machine)}/snapshots`, {
      body: jsonBody(snapshot),
      repeatable: true,
      headTimeoutMs: IMAGE_TIMEOUT_MS,
    });
  }

  /** Removes a snapshot's bytes. Idempotent. */
  async deleteSnapshot({ id }: SnapshotRecord): Promise<void> {
    const answer = await this.#call("DELETE", `/v1/snapshots/${encodeURIComponent(id)}`, {
      repeatable: true,
      headTimeoutMs: DELETE_TIMEOUT_MS,
    });
    answer.resume();
  }

  /** Ends the machine. Idempotent. @returns undefined when the host never had it. */
  async deleteMachine(machine: OwnedMachine, reason: string): Promise<Machine | undefined> {
    const path = `${machinePath(machine)}?reason=${encodeURIComponent(reason)}`;
    return await unlessNotFound(
      this.#json<Machine>("DELETE", path, { repeatable: true, headTimeoutMs: DELETE_TIMEOUT_MS }),
    );
  }

  /** Waits up to `waitMs` for events after `after`. */
  events(_scope: HostScope, after: number, waitMs: number, signal: AbortSignal): Promise<HostEvents> {
    return this.#json("GET", `/v1/events?after=${after}&wait_ms=${waitMs}`, {
      headTimeoutMs: waitMs + 10_000,
      signal,
      repeatable: true,
    });
  }

  async listTemplates(): Promise<Template[]> {
    return (await this.#json<{ templates: Template[] }>("GET", "/v1/templates", { repeatable: true }))
      .templates;
  }

  /** NDJSON of TemplateBuildEvent, as the host writes it. */
  buildTemplate(
    _scope: ServerScope,
    name: string,
    body: Buffer,
    signal: AbortSignal,
  ): Promise<IncomingMessage> {
    return this.#call("POST", `/v1/templates/${encodeURIComponent(name)}/build`, {
      body,
      headTimeoutMs: 0,
      signal,
      headers: { "content-type": "application/json" },
    });
  }

  async deleteTemplate(_scope: ServerScope, name: string): Promise<void> {
    (
      await this.#call("DELETE", `/v1/templates/${encodeURIComponent(name)}`, {
        headTimeoutMs: DELETE_TIMEOUT_MS,
      })
    ).resume();
  }

  /** Console of the machine, text. */
  logs(machine: OwnedMachine, signal: AbortSignal): Promise<IncomingMessage> {
    return this.#call("GET", `${machinePath(machine)}/logs`, { signal, repeatable: true });
  }

  /** Drops the kept connections. */
  close(): void {
    this.#agent.destroy();
  }

  /** A request to a port of the machine's guest. @throws as every call of the host does */
  guest(
    machine: OwnedMachine,
    port: number,
    method: string,
    path: string,
    options: CallOptions = {},
  ): Promise<IncomingMessage> {
    return this.#call(method, portPath(machine, port, path), options);
  }

  /**
   * Sends one request and gives the answer once its head is there, the body unread: the caller reads or destroys it.
   *
   * @throws CodedError for a status of 400 and above, `host_unavailable` when the host cannot be reached,
   *   `client_closed_request` when `signal` aborts.
   */
  async #call(method: string, path: string, options: CallOptions = {}): Promise<IncomingMessage> {
    const answer = await this.#open(method, path, options);
    if ((answer.statusCode ?? 0) < 400) return answer;
    throw await answerError(answer, `${method} ${path.split("?", 1)[0]}`);
  }

  /** As {@link HostClient.guest}, but an answer of any status is the caller's to read. */
  openPort(
    machine: OwnedMachine,
    port: number,
    method: string,
    path: string,
    options: CallOptions = {},
  ): Promise<IncomingMessage> {
    return this.#open(method, portPath(machine, port, path), options);
  }

  /** Asks a port of the machine's guest for an upgrade. An answer of any status is the caller's to read. */
  async upgradePort(
    machine: OwnedMachine,
    port: number,
    method: string,
    path: string,
    { headers, signal }: { headers: OutgoingHttpHeaders; signal: AbortSignal },
  ): Promise<UpgradeOutcome> {
    try {
      return await requestUpgrade({
        ...this.#target,
        agent: false,
        method,
        path: portPath(machine, port, path),
        headers: { ...headers, authorization: this.#authorization },
        headTimeoutMs: UPGRADE_TIMEOUT_MS,
        signal,
      });
    } catch (error) {
      if (signal.aborted)
        throw new CodedError("client_closed_request", `the upgrade on port ${port} was cancelled`);
      throw this.#unreachable(error);
    }
  }

  #unreachable(cause: unknown): CodedError {
    const { code, message } = cause as NodeJS.ErrnoException;
    return new CodedError(
      "host_unavailable",
      `the host at ${this.#url} could not be reached (${code ?? message}); check that it runs, then try again`,
      { cause },
    );
  }

  async #open(method: string, path: string, options: CallOptions): Promise<IncomingMessage> {
    try {
      return await this.#attempt(method, path, options);
    } catch (error) {
      if (!(error instanceof DeadConnection)) throw error;
      if (options.repeatable !== true || (options.body !== undefined && !Buffer.isBuffer(options.body)))
        throw error.coded;
    }
    try {
      return await this.#attempt(method, path, options);
    } catch (error) {
      throw error instanceof DeadConnection ? error.coded : error;
    }
  }

  #attempt(
    method: string,
    path: string,
    { headers = {}, body, headTimeoutMs = DEFAULT_HEAD_TIMEOUT_MS, signal }: CallOptions,
  ): Promise<IncomingMessage> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) {
        reject(
          new CodedError(
            "client_closed_request",
            `${method} ${path} was not sent: the request was cancelled`,
          ),
        );
        return;
      }
      const allHeaders: OutgoingHttpHeaders = { ...headers, authorization: this.#authorization };
      if (Buffer.isBuffer(body)) allHeaders["content-length"] = body.length;
      // Told to close, the host would do so as soon as it has answered, which may be before our last, empty write:
      // EPIPE would then hide the answer. Without an agent to keep it the connection is closed on our side.
      else if (body !== undefined) allHeaders["connection"] = "keep-alive";
      const stream = body === undefined || Buffer.isBuffer(body) ? undefined : body;
      // An upload cannot be sent again, so it never risks a kept connection that the host has just closed.
      const outgoing = httpRequest({
        ...this.#target,
        agent: stream === undefined ? this.#agent : false,
        method,
        path,
        headers: allHeaders,
      });
      let answered = false;
      const fail = (error: Error): void => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", onAbort);
        reject(error);
      };
      const onAbort = (): void => {
        outgoing.destroy();
        fail(new CodedError("client_closed_request", `${method} ${path} was cancelled by the client`));
      };
      const timer =
        headTimeoutMs === 0
          ? undefined
          : setTimeout(() => {
              outgoing.destroy();
              fail(
                new CodedError(
                  "host_unavailable",
                  `the host did not answer ${method} ${path.split("?", 1)[0]} within ${headTimeoutMs} ms; try again, and see its log if it stays so`,
                ),
              );
            }, headTimeoutMs);
      signal?.addEventListener("abort", onAbort, { once: true });
      outgoing.once("response", (answer) => {
        answered = true;
        clearTimeout(timer);
        answer.once("close", () => signal?.removeEventListener("abort", onAbort));
        resolve(answer);
      });
      outgoing.on("error", (error: NodeJS.ErrnoException) => {
        if (answered) return; // the answer's own error event tells its reader
        const coded = this.#unreachable(error);
        const wasDead = outgoing.reusedSocket && (error.code === "ECONNRESET" || error.code === "EPIPE");
        fail(wasDead ? new DeadConnection(coded) : coded);
      });
      if (stream !== undefined) {
        // Piped by hand: `pipeline` would destroy the client's request, and with it the connection its answer takes.
        stream.once("close", () => {
          if (stream.readableEnded) return;
          outgoing.destroy();
          if (!answered)
            fail(
              new CodedError(
                "client_closed_request",
                `the body of ${method} ${path.split("?", 1)[0]} ended before it was complete`,
              ),
            );
        });
        stream.once("error", (error) => {
          outgoing.destroy();
          if (!answered)
            fail(
              error instanceof CodedError
                ? error
                : new CodedError(
                    "client_closed_request",
                    `the body of ${method} ${path.split("?", 1)[0]} broke off`,
                    { cause: error },
                  ),
            );
        });
        outgoing.once("close", () => stream.unpipe(outgoing));
        stream.pipe(outgoing);
      } else outgoing.end(body);
    });
  }

  async #json<T>(method: string, path: string, options: CallOptions): Promise<T> {
    const headers = options.body === undefined ? {} : { "content-type": "application/json" };
    const answer = await this.#call(method, path, { ...options, headers });
    return JSON.parse((await readAll(answer, MAX_JSON_BYTES)).toString("utf8")) as T;
  }
}

/** A kept-alive connection that the host had closed before it read the request. */
class DeadConnection extends Error {
  readonly coded: CodedError;

  constructor(coded: CodedError) {
    super(coded.message);
    this.coded = coded;
  }
}

function portPath(machine: OwnedMachine, port: number, path: string): string {
  return `${machinePath(machine)}/ports/${port}${path}`;
}

function machinePath({ id }: OwnedMachine): string {
  return `/v1/machines/${encodeURIComponent(id)}`;
}

function jsonBody(value: unknown): Buffer {
  return Buffer.from(JSON.stringify(value));
}

function withSignal(signal: AbortSignal | undefined): { signal?: AbortSignal } {
  return signal === undefined ? {} : { signal };
}

async function unlessNotFound<T>(answer: Promise<T>): Promise<T | undefined> {
  try {
    return await answer;
  } catch (error) {
    if (error instanceof CodedError && (error.code === "sandbox_not_found" || error.code === "not_found"))
      return undefined;
    throw error;
  }
}

/** Reads a body of at most `maxBytes`. @throws CodedError unsupported when it is larger, host_unavailable when it breaks off. */
export async function readAll(answer: IncomingMessage, maxBytes: number): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  try {
    for await (const chunk of answer as AsyncIterable<Buffer>) {
      bytes += chunk.length;
      if (bytes > maxBytes)
        throw new CodedError(
          "unsupported",
          `the answer is larger than the ${maxBytes} bytes this server takes in one piece; ask for less at once`,
        );
      chunks.push(chunk);
    }
  } catch (error) {
    if (error instanceof CodedError) throw error;
    throw new CodedError("host_unavailable", "the host's answer broke off; try again", { cause: error });
  }
  return chunks.length === 1 && chunks[0] !== undefined ? chunks[0] : Buffer.concat(chunks, bytes);
}
