import { createHash } from "node:crypto";
import {
  CodedError,
  type ExecEvent,
  execRequestSchema,
  execResultSchema,
  type ExecRequest,
  startedExecSchema,
} from "@torpor/protocol";
import type { z } from "zod";
import { bufferedExec } from "../guest/buffered-exec.ts";
import {
  attachExec,
  type ExecProgress,
  type ExecTarget,
  type FollowOptions,
  newExecId,
  runExec,
} from "../guest/exec.ts";
import { SENT, type Answer, type Call, keptAnswer, routeOf } from "../http/api.ts";
import type { KeyedRun } from "../http/idempotency.ts";
import { NdjsonWriter } from "../http/ndjson.ts";
import { type IdempotencySlot, idempotencySlot } from "../store/idempotency-store.ts";
import type { RouteDeps } from "./route-deps.ts";

/** Progress of a keyed command: from then on a repeat attaches and never starts. */
const STARTED = "started";

type ExecCall = Call<unknown, z.output<typeof execRequestSchema>>;

/** Run commands. */
export function addExecRoutes(deps: RouteDeps): void {
  deps.api.add(
    {
      method: "post",
      path: "/v1/sandboxes/{id}/exec",
      tag: "exec",
      summary: "Run a command",
      description:
        "A string is run by `bash -l -c`, an array as it is. With `Accept: application/x-ndjson` the events stream as they happen. A foreground command is killed when the client leaves. An Idempotency-Key makes it run at most once, whatever is retried.",
      scope: "sandbox:exec",
      body: execRequestSchema,
      // A command of 1 MiB and as much standard input, each escaped to at most six characters a byte.
      maxBodyBytes: 2 * 1024 * 1024,
      answers: {
        200: { description: "How it ended, and its output", schema: execResultSchema },
        202: { description: "A background command has started", schema: startedExecSchema },
      },
    },
    async (call) => {
      refuseTwoInputs(call.body);
      const { record, host } = await deps.sandboxes.requireRunning(call.caller.scope, call.param("id"));
      deps.activity.note(record);
      const target: ExecTarget = { record, host };
      const wantsStream = call.incoming.headers.accept?.includes("application/x-ndjson") ?? false;
      try {
        if (wantsStream) return await streamedExec(deps, call, target);
        return await jsonExec(deps, call, target);
      } finally {
        deps.activity.note(record);
      }
    },
  );
}

function refuseTwoInputs(request: ExecRequest): void {
  if (request.stdin === undefined || !request.keep_stdin_open) return;
  const message = "cannot be used together with stdin, which closes standard input after it";
  throw new CodedError(
    "invalid_request",
    `keep_stdin_open ${message}; write the text with POST .../processes/{pid}/stdin instead`,
    {
      details: { issues: [{ path: "keep_stdin_open", message }] },
    },
  );
}

/** Options of following a command for this request. */
export function followOptions(deps: RouteDeps, target: ExecTarget, signal: AbortSignal): FollowOptions {
  return {
    signal,
    log: deps.log,
    onSandboxEnded: (fate) => {
      const noted =
        fate.machine === undefined
          ? deps.sandboxes.noteGone(target.record, "host_lost")
          : deps.sandboxes.noteEnded(target.record, fate.machine);
      noted.catch((error: unknown) =>
        deps.log.warn({
          op: "sandbox.ended",
          outcome: "not recorded",
          sandboxId: target.record.id,
          err: error,
        }),
      );
    },
  };
}

async function jsonExec(deps: RouteDeps, call: ExecCall, target: ExecTarget): Promise<Answer> {
  const request = call.body;
  // A background command's stream is left on purpose; any other is left by its client alone.
  const leave = new AbortController();
  const options = followOptions(
    deps,
    target,
    request.background ? AbortSignal.any([call.signal, leave.signal]) : call.signal,
  );
  if (call.idempotencyKey === undefined) {
    const execId = newExecId();
    return await collect(deps, call, runExec(target, request, execId, options), request, execId, leave);
  }
  const slot = idempotencySlot(call.caller.scope, routeOf(call.incoming), call.idempotencyKey);
  const execId = keyedExecId(slot);
  const kept = await deps.idempotency.run({
    slot,
    body: call.rawBody,
    resumable: true,
    signal: call.signal,
    run: async (run) => {
      const progress =
        run.progress === STARTED
          ? attachAgain(target, execId, options)
          : runExec(target, request, execId, options);
      const answer = await collect(deps, call, noteStart(progress, run), request, execId, leave);
      return { status: answer.status, body: JSON.stringify(answer.body) };
    },
    recover: async () => {
      const answer = await collect(deps, call, attachAgain(target, execId, options), request, execId, leave);
      return { status: answer.status, body: JSON.stringify(answer.body) };
    },
  });
  return keptAnswer(kept);
}

async function collect(
  deps: RouteDeps,
  call: ExecCall,
  progress: AsyncGenerator<ExecProgress>,
  request: ExecRequest,
  execId: string,
  leave: AbortController,
): Promise<{ status: number; body: unknown }> {
  if (request.background) {
    for await (const step of progress) {
      if (step.type !== "started") continue;
      call.note({ execId, pid: step.pid });
      leave.abort(); // it was not asked to end with its client, so it goes on
      return { status: 202, body: { exec_id: execId, pid: step.pid } };
    }
    throw new CodedError(
      "guest_unavailable",
      "the sandbox did not say whether the command has started; see its processes",
    );
  }
  const result = await bufferedExec(progress, request, execId);
  call.note({ execId, exec: result.outcome, execMs: result.duration_ms });
  deps.metrics.exec(result.outcome);
  return { status: 200, body: result };
}

async function streamedExec(deps: RouteDeps, call: ExecCall, target: ExecTarget): Promise<Answer> {
  const request = call.body;
  const options = followOptions(deps, target, call.signal);
  if (call.idempotencyKey === undefined) {
    const execId = newExecId();
    await sendEvents(deps, call, runExec(target, request, execId, options), execId);
    return SENT;
  }
  const slot = idempotencySlot(call.caller.scope, routeOf(call.incoming), call.idempotencyKey);
  const execId = keyedExecId(slot);
  const again = (): Promise<void> => sendEvents(deps, call, attachAgain(target, execId, options), execId);
  await deps.idempotency.run({
    slot,
    body: call.rawBody,
    resumable: true,
    signal: call.signal,
    run: async (run) => {
      if (run.progress === STARTED) await again();
      else await sendEvents(deps, call, noteStart(runExec(target, request, execId, options), run), execId);
      // The guest keeps what a repeat needs; nothing is kept here but the fact.
      return { status: 200, body: null };
    },
    recover: async () => {
      await again();
      return { status: 200, body: null };
    },
  });
  return SENT;
}

/** Sends a command's events as NDJSON until its end. A refusal before the start is thrown, so that it gets its status. */
export async function sendEvents(
  deps: RouteDeps,
  call: Call<unknown, unknown>,
  progress: AsyncGenerator<ExecProgress>,
  execId: string,
): Promise<void> {
  let writer: NdjsonWriter | undefined;
  const seen = { stdout: 0, stderr: 0 };
  let lost = 0;
  try {
    for await (const step of progress) {
      writer ??= new NdjsonWriter(call.outgoing, call.signal);
      if (step.type === "output") {
        seen[step.stream] += Buffer.byteLength(step.base64, "base64");
        lost += step.lostBytes;
      }
      await writer.write(toEvent(step, execId, seen, lost > 0));
      if (step.type === "ended") {
        call.note({ execId, exec: step.end.outcome, execMs: step.end.duration_ms });
        deps.metrics.exec(step.end.outcome);
      }
    }
    writer?.end();
  } catch (error) {
    if (writer === undefined) throw error;
    // Lines are out already: a broken connection is the only way left to say that the stream is not whole.
    call.outgoing.destroy();
    throw error;
  }
}

function toEvent(
  step: ExecProgress,
  execId: string,
  seen: { stdout: number; stderr: number },
  someLost: boolean,
): ExecEvent {
  switch (step.type) {
    case "started":
      return { type: "start", exec_id: execId, pid: step.pid };
    case "output":
      return {
        type: step.stream,
        data: step.base64,
        ...(step.lostBytes > 0 ? { dropped_bytes: step.lostBytes } : {}),
      };
    case "keepalive":
      return { type: "keepalive" };
    case "ended":
      break;
  }
  const { totals, message, ...end } = step.end;
  return {
    type: "end",
    exec_id: execId,
    ...end,
    truncated: totals === null ? someLost : totals.stdoutTruncated || totals.stderrTruncated || someLost,
    stdout_bytes: totals?.stdoutBytes ?? seen.stdout,
    stderr_bytes: totals?.stderrBytes ?? seen.stderr,
    ...(message === undefined ? {} : { message }),
  };
}

/** Long enough that short commands cost no write, and far shorter than the guest remembers them by their id. */
const NOTE_START_AFTER_MS = 5_000;

/**
 * Notes that the command has started, once it has run for a while or when it is left before its end. Until then a
 * repeat starts it again by the same id, which the guest takes for the first.
 */
async function* noteStart(
  progress: AsyncGenerator<ExecProgress>,
  run: KeyedRun,
): AsyncGenerator<ExecProgress> {
  let state: "unstarted" | "running" | "ended" = "unstarted";
  let noted = false;
  let timer: NodeJS.Timeout | undefined;
  const note = async (): Promise<void> => {
    if (noted) return;
    noted = true;
    await run.noteProgress(STARTED);
  };
  try {
    for await (const step of progress) {
      if (step.type === "started") {
        state = "running";
        timer = setTimeout(() => void note().catch(() => (noted = false)), NOTE_START_AFTER_MS);
      } else if (step.type === "ended") {
        state = "ended";
        clearTimeout(timer);
      }
      yield step;
    }
  } finally {
    clearTimeout(timer);
    if (state === "running") await note();
  }
}

/** Follows a command that has been started before. Never starts it: when the guest no longer has it, that is told. */
async function* attachAgain(
  target: ExecTarget,
  execId: string,
  options: FollowOptions,
): AsyncGenerator<ExecProgress> {
  try {
    yield* attachExec(target, { execId }, options);
  } catch (error) {
    if (!(error instanceof CodedError) || error.code !== "process_not_found") throw error;
    throw new CodedError(
      "conflict",
      "the command with this Idempotency-Key has been run, but its outcome is no longer kept; it is not run again",
      { cause: error },
    );
  }
}

/** The id of a keyed command: the same for the same key, so that the guest runs it once however often it is sent. */
function keyedExecId(slot: IdempotencySlot): string {
  const name = JSON.stringify([slot.account, slot.tenant, slot.route, slot.key]);
  return `k${createHash("sha256").update(name).digest("hex").slice(0, 40)}`;
}
