import type { Log } from "@torpor/base";
import {
  CodedError,
  type ExecRequest,
  type ExecResult,
  type ProcessEndExtension,
  type ProcessEvent,
} from "@torpor/protocol";
import { GuestRefusal } from "../host/answer-error.ts";
import type { PlacedHost } from "../host/placement.ts";
import { type LostFate, machineFate } from "../sandbox/machine-fate.ts";
import type { SandboxRecord } from "../store/sandbox-record.ts";
import { serialId } from "../serial-id.ts";
import { startRequest } from "./exec-start.ts";
import { GuestClient } from "./guest-client.ts";
import { untilOverdue } from "./overdue.ts";
import { unknownDefaultUser } from "./unknown-user.ts";
import { unbrokenEvents } from "./unbroken-events.ts";

/** What happens in a command's life, in order: `started` once, output, then `ended` once. */
export type ExecProgress =
  | { type: "started"; pid: number }
  | { type: "output"; stream: "stdout" | "stderr"; base64: string; lostBytes: number }
  | { type: "keepalive" }
  | { type: "ended"; end: ExecEnd };

/** How it ended, without the output. */
type ExecEnd = Pick<ExecResult, "exit_code" | "signal" | "outcome" | "duration_ms" | "message"> & {
  /** Null when the guest could not tell any more. */
  totals: Pick<
    ProcessEndExtension,
    "stdoutBytes" | "stderrBytes" | "stdoutTruncated" | "stderrTruncated"
  > | null;
};

export interface ExecTarget {
  record: SandboxRecord;
  host: PlacedHost;
}

export interface FollowOptions {
  signal: AbortSignal;
  log: Log;
  /** Aborted when the command should have been over long ago and its guest says nothing. */
  overdue?: AbortSignal;
  /** Told when the host says that the sandbox has ended. */
  onSandboxEnded: (fate: LostFate) => void;
}

const OVERDUE_MESSAGE =
  "the sandbox does not answer any more, well after the command's time limit: its agent is stopped or starved; destroy the sandbox";
/** What a guest that is asked whether it lives may take to answer, milliseconds. */
const PROBE_TIMEOUT_MS = 5_000;
const OOM_MESSAGE = "the sandbox ran out of memory; create one with a larger memory_mb";

/** A new id for a command nobody gave a key for. It names a command within its sandbox and opens nothing. */
export function newExecId(): string {
  return serialId("x");
}

/**
 * Runs a command and yields what happens. The guest runs one `execId` at most once: sending it again follows the first.
 * Output beyond the request's `max_output_bytes` is counted and dropped in the guest, unless `whole` is asked for.
 *
 * @throws CodedError when it did not start: the guest's refusal, `sandbox_ended`, `guest_unavailable`. Once it has
 *   started, the end of the sandbox is an outcome (`lost`, `oom`), not an error.
 */
export function runExec(
  target: ExecTarget,
  request: ExecRequest,
  execId: string,
  options: FollowOptions & { whole?: boolean },
): AsyncGenerator<ExecProgress> {
  const guest = new GuestClient(target.host.client, target.record);
  const start = startRequest(request, execId, options.whole ?? false);
  const { timeoutMs = 0, killGraceMs = 0 } = start.torpor ?? {};
  const overdue = new AbortController();
  const signal = AbortSignal.any([options.signal, overdue.signal]);
  const events = unbrokenEvents(guest, { start }, signal);
  if (timeoutMs === 0) return follow(target, events, options, "command", request.user);
  const watched = untilOverdue(events, timeoutMs + killGraceMs, {
    isAlive: () => isAlive(target, guest, execId),
    giveUp: () => overdue.abort(),
  });
  return follow(target, watched, { ...options, overdue: overdue.signal }, "command", request.user);
}

/** Follows a command that runs or ended a short while ago, its kept output first. @throws CodedError process_not_found */
export function attachExec(
  target: ExecTarget,
  process: { pid: number } | { execId: string },
  options: FollowOptions,
): AsyncGenerator<ExecProgress> {
  const guest = new GuestClient(target.host.client, target.record);
  const selector = "pid" in process ? process : { torpor: { execId: process.execId } };
  return follow(target, unbrokenEvents(guest, { process: selector }, options.signal), options, "process");
}

async function* follow(
  target: ExecTarget,
  events: AsyncGenerator<ProcessEvent>,
  options: FollowOptions,
  asked: "command" | "process",
  user?: string,
): AsyncGenerator<ExecProgress> {
  const startedAt = performance.now();
  const begunAtUnixMs = Date.now();
  let started = false;
  try {
    for await (const event of events) {
      if (event.start !== undefined) {
        started = true;
        yield { type: "started", pid: event.start.pid };
      } else if (event.data !== undefined) {
        const lostBytes = event.data.torpor?.lostBytes ?? 0;
        if (event.data.stdout !== undefined)
          yield { type: "output", stream: "stdout", base64: event.data.stdout, lostBytes };
        else if (event.data.stderr !== undefined)
          yield { type: "output", stream: "stderr", base64: event.data.stderr, lostBytes };
        else if (event.data.pty !== undefined)
          yield { type: "output", stream: "stdout", base64: event.data.pty, lostBytes };
      } else if (event.keepalive !== undefined) yield { type: "keepalive" };
      else if (event.end !== undefined) {
        const end = toEnd(event.end, performance.now() - startedAt);
        yield { type: "ended", end: await withOom(target, end, begunAtUnixMs) };
        return;
      }
    }
  } catch (error) {
    if (options.signal.aborted)
      throw new CodedError("client_closed_request", "the client left while the command ran", {
        cause: error,
      });
    if (options.overdue?.aborted === true) {
      options.log.warn({ op: "exec", outcome: "overdue", sandboxId: target.record.id, started });
      if (!started) throw new CodedError("guest_unavailable", OVERDUE_MESSAGE, { cause: error });
      const durationMs = performance.now() - startedAt;
      yield {
        type: "ended",
        end: {
          ...lostEnd(await machineFate(target.host, target.record, 0), durationMs),
          message: OVERDUE_MESSAGE,
        },
      };
      return;
    }
    if (error instanceof GuestRefusal && error.code !== "guest_unavailable" && !started)
      throw refusal(error, asked, user);
    if (error instanceof CodedError && error.code === "sandbox_ended") {
      const fate = await machineFate(target.host, target.record, 0);
      if (fate.ended) options.onSandboxEnded(fate);
      if (!started) throw error;
      yield { type: "ended", end: lostEnd(fate, performance.now() - startedAt) };
      return;
    }
    const fate = await machineFate(target.host, target.record, started ? 2_000 : 500);
    options.log.warn({
      op: "exec",
      outcome: "lost",
      sandboxId: target.record.id,
      started,
      reason: fate.reason,
      err: error,
    });
    if (fate.ended) options.onSandboxEnded(fate);
    if (!started) {
      if (fate.ended)
        throw new CodedError(
          "sandbox_ended",
          `the command was not run: ${fate.message}; create a new sandbox`,
          { details: { reason: fate.reason }, cause: error },
        );
      if (error instanceof CodedError) throw error;
      throw new CodedError(
        "guest_unavailable",
        "the sandbox broke the connection before it had started the command; try again",
        { cause: error },
      );
    }
    yield { type: "ended", end: lostEnd(fate, performance.now() - startedAt) };
  }
}

/**
 * Tells an end for lack of memory from others. gVisor ends a process whose memory the kernel took away by exit code 1,
 * without a word; a shell above it says 1 or 137. Only the host, which sees the kernel's counter, knows why.
 */
async function withOom(target: ExecTarget, end: ExecEnd, begunAtUnixMs: number): Promise<ExecEnd> {
  const isSuspect =
    (end.outcome === "exited" && (end.exit_code === 1 || end.exit_code === 137)) ||
    (end.outcome === "signalled" && end.signal === "SIGKILL");
  if (!isSuspect) return end;
  const machine = await target.host.client.findMachine(target.record).catch(() => undefined);
  const oomAt = machine?.last_oom_at ?? null;
  if (oomAt === null || Date.parse(oomAt) < begunAtUnixMs) return end;
  return { ...end, outcome: "oom", message: OOM_MESSAGE };
}

/**
 * Whether a command that says nothing well after its time limit may still come to its end: its sandbox stands still, which
 * counts for no limit, or its guest, which keeps the limit, answers and knows it.
 */
async function isAlive({ host, record }: ExecTarget, guest: GuestClient, execId: string): Promise<boolean> {
  try {
    const machine = await host.client.findMachine(record);
    if (machine === undefined || machine.state === "ending" || machine.state === "ended") return false;
    if (machine.state !== "running") return true;
    const processes = await guest.listRunning(AbortSignal.timeout(PROBE_TIMEOUT_MS));
    return processes.some(({ torpor }) => torpor?.execId === execId);
  } catch (error) {
    return error instanceof CodedError && error.code === "wrong_state"; // it has just been stopped
  }
}

function lostEnd(fate: LostFate, durationMs: number): ExecEnd {
  return {
    exit_code: null,
    signal: null,
    outcome: fate.reason === "oom" ? "oom" : "lost",
    duration_ms: Math.round(durationMs * 1_000) / 1_000,
    message: fate.message,
    totals: null,
  };
}

function toEnd(end: NonNullable<ProcessEvent["end"]>, durationMs: number): ExecEnd {
  const detail = end.torpor;
  if (detail === undefined) {
    // An agent without our extension, such as another implementation of the protocol.
    const exited = end.exited ?? false;
    return {
      exit_code: exited ? (end.exitCode ?? 0) : null,
      signal: null,
      outcome: exited ? "exited" : "signalled",
      duration_ms: durationMs,
      totals: null,
    };
  }
  const exited = detail.signal === null;
  const result: ExecEnd = {
    exit_code: exited ? detail.exitCode : null,
    signal: detail.signal,
    outcome: detail.outcome,
    duration_ms: detail.durationMs,
    totals: detail,
  };
  if (detail.outcome === "oom") result.message = OOM_MESSAGE;
  return result;
}

function refusal(error: GuestRefusal, asked: "command" | "process", user: string | undefined): CodedError {
  const details = { cause: error };
  if (asked === "process" && error.guestCode === "not_found")
    return new CodedError(
      "process_not_found",
      `${error.message}; list what runs with GET .../processes`,
      details,
    );
  switch (error.guestCode) {
    case "unauthenticated": {
      const aboutDefault = unknownDefaultUser(error.message, user);
      if (aboutDefault !== undefined)
        return new CodedError("invalid_request", `the command was not run: ${aboutDefault}`, details);
      return new CodedError("invalid_request", `the command was not run: ${error.message} (field user)`, {
        ...details,
        details: { issues: [{ path: "user", message: error.message }] },
      });
    }
    case "not_found":
    case "permission_denied":
    case "invalid_argument":
      return new CodedError("invalid_request", `the command was not run: ${error.message}`, details);
    default:
      return new CodedError(error.code, `the command was not run: ${error.message}`, details);
  }
}
