import type { IncomingMessage } from "node:http";
import {
  CODE_PORT,
  type CodeContext,
  codeContextSchema,
  CodedError,
  PORT_HEADERS,
  type RunCodeRequest,
} from "@torpor/protocol";
import { z } from "zod";
import { GuestRefusal } from "../host/answer-error.ts";
import type { CallOptions } from "../host/host-connection.ts";
import { readAll } from "../host/read-all.ts";
import { machineFate } from "../sandbox/machine-fate.ts";
import { serialId } from "../serial-id.ts";
import type { CodeLine } from "./code-lines.ts";
import type { ExecTarget, FollowOptions } from "./exec.ts";
import { Interruptions } from "./interruptions.ts";
import { untilOverdue } from "./overdue.ts";
import { CodeLost, unbrokenCode } from "./unbroken-code.ts";

const MAX_CONTEXTS_BYTES = 1024 * 1024;
/** A kernel that starts under load. */
const CONTEXT_TIMEOUT_MS = 120_000;
/** What a code server that is asked whether it lives may take to answer, milliseconds. */
const PROBE_TIMEOUT_MS = 5_000;
/** How long the code server is tried to be told that nobody waits for an execution any more, milliseconds. */
const FAREWELL_WITHIN_MS = 60_000;

const LINE_END = Buffer.from("\n");

/** The code server of one sandbox: E2B's code-interpreter protocol, spoken through the sandbox's host. */
export class CodeServer {
  readonly #target: ExecTarget;

  constructor(target: ExecTarget) {
    this.#target = target;
  }

  /**
   * Runs code and yields its lines as they come, also over a snapshot, a fork and a pause. The last line is an error named
   * TimeoutError after the time limit, and one named ExecutionLost when the sandbox fell asleep, ended or was cut off for
   * good. Leaving it, like an abort, interrupts the code.
   *
   * @throws CodedError before the first line: not_found for an unknown context, invalid_request, guest_unavailable when no
   *   code server answers
   */
  async *run(
    { timeout_seconds: timeoutSeconds, ...request }: RunCodeRequest,
    { signal, log, onSandboxEnded }: FollowOptions,
  ): AsyncGenerator<CodeLine> {
    const { record, host } = this.#target;
    const id = serialId("c");
    const limit = new AbortController();
    // Until the code server keeps the limit itself, which leaves out what the sandbox stands still.
    const timer = timeoutSeconds === 0 ? undefined : setTimeout(() => limit.abort(), timeoutSeconds * 1_000);
    const either = AbortSignal.any([signal, limit.signal]);
    const path = `${heldExecutePath(id)}&timeout_ms=${Math.ceil(timeoutSeconds * 1_000)}`;
    const options = { headers: { [PORT_HEADERS.resumable]: "1" }, headTimeoutMs: 0, signal: either };
    let hasBegun = false;
    let isOver = false;
    const held = {
      execute: () => this.#call("POST", path, request, options),
      linesFrom: (number: number) => this.#linesFrom(id, number, either),
      onBegun: (isHeld: boolean) => {
        hasBegun = true;
        if (isHeld) clearTimeout(timer);
      },
    };
    const lines = unbrokenCode(held, new Interruptions(host.client, record, either), either);
    const watched =
      timeoutSeconds === 0
        ? lines
        : untilOverdue(lines, timeoutSeconds * 1_000, {
            isAlive: () => this.#isAlive(id),
            giveUp: () => limit.abort(),
          });
    try {
      for await (const { line } of watched) yield line;
      isOver = true;
    } catch (error) {
      if (signal.aborted) throw error;
      if (limit.signal.aborted) {
        yield tooLong(timeoutSeconds);
        return;
      }
      isOver = !hasBegun || error instanceof CodeLost;
      if (!(error instanceof CodeLost)) throw error;
      const fate = await machineFate(host, record, 2_000, "code");
      log.warn({ op: "code", outcome: "lost", sandboxId: record.id, reason: fate.reason, err: error });
      if (fate.ended) onSandboxEnded(fate);
      yield { type: "error", name: "ExecutionLost", value: fate.message, traceback: "" };
    } finally {
      clearTimeout(timer);
      if (!isOver) void this.#abandon(id);
    }
  }

  /**
   * The lines, as bytes, of code that a client of E2B's began by itself at {@link heldExecutePath}: `answer` is its first stream, which a
   * snapshot, a fork or a pause may cut off. An abort interrupts the code.
   *
   * @throws CodeLost when it cannot be gone on with
   */
  async *goOn(id: string, answer: IncomingMessage, signal: AbortSignal): AsyncGenerator<Buffer> {
    const { record, host } = this.#target;
    const held = {
      execute: () => Promise.resolve(answer),
      linesFrom: (number: number) => this.#linesFrom(id, number, signal),
    };
    let isOver = false;
    try {
      const interruptions = new Interruptions(host.client, record, signal);
      for await (const { bytes } of unbrokenCode(held, interruptions, signal))
        yield Buffer.concat([bytes, LINE_END]);
      isOver = true;
    } catch (error) {
      isOver = error instanceof CodeLost && !signal.aborted;
      throw error;
    } finally {
      if (!isOver) void this.#abandon(id);
    }
  }

  async contexts(signal: AbortSignal): Promise<CodeContext[]> {
    return z.array(codeContextSchema).parse(await this.#json("GET", "/contexts", undefined, signal));
  }

  async createContext(
    request: { language?: string | undefined; cwd?: string | undefined },
    signal: AbortSignal,
  ): Promise<CodeContext> {
    return codeContextSchema.parse(await this.#json("POST", "/contexts", request, signal));
  }

  /** Starts its kernel anew: its variables are gone. @throws CodedError not_found */
  async restartContext(id: string, signal: AbortSignal): Promise<void> {
    await this.#text("POST", `/contexts/${encodeURIComponent(id)}/restart`, {}, signal);
  }

  /** Ends its kernel. @throws CodedError not_found */
  async deleteContext(id: string, signal: AbortSignal): Promise<void> {
    await this.#text("DELETE", `/contexts/${encodeURIComponent(id)}`, undefined, signal);
  }

  #linesFrom(id: string, number: number, signal: AbortSignal): Promise<IncomingMessage> {
    const options = { headers: { [PORT_HEADERS.resumable]: "1" }, headTimeoutMs: 0, signal };
    return this.#call("GET", `/executions/${id}/lines?from=${number}`, undefined, options);
  }

  /**
   * Whether an execution that says nothing well after its time limit may still come to its end: its sandbox stands still,
   * which counts for no limit, or its code server, which keeps the limit, answers and knows it.
   */
  async #isAlive(id: string): Promise<boolean> {
    const { record, host } = this.#target;
    try {
      const machine = await host.client.findMachine(record);
      if (machine === undefined || machine.state === "ending" || machine.state === "ended") return false;
      if (machine.state !== "running") return true;
      await this.#text("GET", `/executions/${id}`, undefined, AbortSignal.timeout(PROBE_TIMEOUT_MS));
      return true;
    } catch (error) {
      return error instanceof CodedError && error.code === "wrong_state"; // it has just been stopped
    }
  }

  /** Nobody waits for it any more: it is interrupted. Told once no freeze is in the way. */
  async #abandon(id: string): Promise<void> {
    const { record, host } = this.#target;
    const signal = AbortSignal.timeout(FAREWELL_WITHIN_MS);
    try {
      if (await new Interruptions(host.client, record, signal).pass(undefined))
        await this.#text("DELETE", `/executions/${id}`, undefined, signal);
    } catch {
      // The code server interrupts it by itself, half a minute later, or has done so when the connection was cut.
    }
  }

  async #json(method: string, path: string, body: unknown, signal: AbortSignal): Promise<unknown> {
    return JSON.parse(await this.#text(method, path, body, signal));
  }

  async #text(method: string, path: string, body: unknown, signal: AbortSignal): Promise<string> {
    const answer = await this.#call(method, path, body, { headTimeoutMs: CONTEXT_TIMEOUT_MS, signal });
    return (await readAll(answer, MAX_CONTEXTS_BYTES)).toString("utf8");
  }

  async #call(method: string, path: string, body: unknown, options: CallOptions): Promise<IncomingMessage> {
    try {
      const { record, host } = this.#target;
      return await host.client.guest(record, CODE_PORT, method, path, {
        ...options,
        ...(body === undefined
          ? {}
          : {
              headers: { ...options.headers, "content-type": "application/json" },
              body: Buffer.from(JSON.stringify(body)),
            }),
      });
    } catch (error) {
      throw meaningOf(error);
    }
  }
}

/** Where code is posted that the code server is to hold for whoever is cut off, under an id of the caller's. */
export function heldExecutePath(id: string): string {
  return `/execute?execution_id=${id}`;
}

function tooLong(seconds: number): CodeLine {
  return {
    type: "error",
    name: "TimeoutError",
    value: `the code ran for longer than its ${seconds} s and was interrupted`,
    traceback: "",
  };
}

/** The code server's plain refusals in our words. */
function meaningOf(error: unknown): unknown {
  if (error instanceof GuestRefusal) {
    const options = { cause: error };
    if (error.guestCode === "404")
      return new CodedError(
        "not_found",
        `${error.message}; list contexts with GET .../code/contexts`,
        options,
      );
    if (error.guestCode === "400" || error.guestCode === "422")
      return new CodedError("invalid_request", `the code was not run: ${error.message}`, options);
    return new CodedError("guest_unavailable", `the code server refused: ${error.message}`, options);
  }
  if (error instanceof CodedError && error.code === "guest_unavailable") {
    return new CodedError(
      "guest_unavailable",
      `no code server answers on port ${CODE_PORT}: it is part of the template code-interpreter and of those that say so (${error.message})`,
      { cause: error },
    );
  }
  return error;
}
