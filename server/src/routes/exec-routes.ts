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
import { withKeepalives } from "../guest/keepalives.ts";
import { SENT, type Answer, type Call, routeOf } from "../http/api.ts";
import { NdjsonWriter } from "../http/ndjson.ts";
import { idempotencySlot } from "../store/idempotency-store.ts";
import type { RouteDeps } from "./route-deps.ts";

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
        "A string is run by `bash -l -c`, an array as it is. With `Accept: application/x-ndjson` the events stream as they happen, all output with them: a client that reads slowly slows the command. A foreground command is killed when the client leaves. To its caller a snapshot, a fork and a pause are no more than a pause, which counts for no time limit; a hibernation ends the call with outcome `lost`, and the command goes on after the wake, to be followed by its exec_id, or, where the memory was not kept, has ended. An Idempotency-Key makes it run at most once, whatever is retried within 5 minutes of its end, as long as the sandbox keeps its memory: after a wake from files alone only the server that started it refuses a repeat, and no longer once it was restarted or 10 minutes have passed. Then look at the files before repeating it.",
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
  const { execId, replayed, progress } = await openExec(deps, call, target, options);
  const answer = await collect(deps, call, progress, request, execId, leave);
  return { ...answer, headers: replayed ? { "idempotency-replayed": "true" } : {} };
}

/** The command of this request: a new one, or with an `Idempotency-Key` the one that was started with it. */
async function openExec(
  deps: RouteDeps,
  call: ExecCall,
  target: ExecTarget,
  options: FollowOptions & { whole?: boolean },
): Promise<{ execId: string; replayed: boolean; progress: AsyncGenerator<ExecProgress> }> {
  if (call.idempotencyKey === undefined) {
    const execId = newExecId();
    return { execId, replayed: false, progress: runExec(target, call.body, execId, options) };
  }
  const slot = idempotencySlot(call.caller.scope, routeOf(call.incoming), call.idempotencyKey);
  return await deps.keyedExecs.open(slot, call.rawBody, call.signal, {
    start: (execId) => runExec(target, call.body, execId, options),
    attach: (execId) => attachExec(target, { execId }, options),
  });
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
  const options = followOptions(deps, target, call.signal);
  const { execId, progress } = await openExec(deps, call, target, { ...options, whole: true });
  await sendEvents(deps, call, progress, execId);
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
    for await (const step of withKeepalives(progress)) {
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
