import {
  codeContextSchema,
  CodedError,
  codeExecutionSchema,
  createCodeContextSchema,
  runCodeSchema,
} from "@torpor/protocol";
import { z } from "zod";
import type { CodeLine } from "../guest/code-lines.ts";
import { CodeServer } from "../guest/code-server.ts";
import type { ExecTarget } from "../guest/exec.ts";
import { gatherCode } from "../guest/gathered-code.ts";
import { withKeepalives } from "../guest/keepalives.ts";
import { type Call, routeOf, SENT } from "../http/api.ts";
import { NdjsonWriter } from "../http/ndjson.ts";
import { refused } from "../sandbox/create-plan.ts";
import { idempotencySlot } from "../store/idempotency-store.ts";
import { followOptions } from "./exec-routes.ts";
import type { RouteDeps } from "./route-deps.ts";

const CONTEXT_PATH = "/v1/sandboxes/{id}/code/contexts/{context_id}";

/** Run code in notebook kernels. */
export function addCodeRoutes(deps: RouteDeps): void {
  const { api } = deps;
  const targetOf = async (call: Call<unknown, unknown>): Promise<ExecTarget> => {
    const target = await deps.sandboxes.requireRunning(call.caller.scope, call.param("id"));
    deps.activity.note(target.record);
    return target;
  };
  const serverOf = async (call: Call<unknown, unknown>): Promise<CodeServer> =>
    new CodeServer(await targetOf(call));

  api.add(
    {
      method: "post",
      path: "/v1/sandboxes/{id}/code",
      tag: "code",
      summary: "Run code in a kernel",
      description:
        "Variables stay for the next call, and over a hibernation. With `Accept: application/x-ndjson` the lines come as they happen: `stdout`, `stderr`, `result`, `error`, `number_of_executions`, `keepalive`. The code is interrupted when the client leaves or its time is over (an `error` named TimeoutError). It goes on, and so does the call, through snapshots, forks and pauses; when the sandbox falls asleep or ends meanwhile the last line is an `error` named ExecutionLost, and after a wake the code goes on unheard. An exception in the code is an `error`, not a failure of the call.",
      scope: "sandbox:exec",
      body: runCodeSchema,
      answers: { 200: { description: "What it came to", schema: codeExecutionSchema } },
    },
    async (call) => {
      const { context_id: contextId, language } = call.body;
      if (contextId !== undefined && language !== undefined)
        throw refused("language", "cannot be given together with context_id, which has a language already");
      const target = await targetOf(call);
      const run = (): AsyncGenerator<CodeLine> =>
        new CodeServer(target).run(call.body, followOptions(deps, target, call.signal));
      const wantsLines = call.incoming.headers.accept?.includes("application/x-ndjson") ?? false;
      if (wantsLines) {
        await onceAtMost(deps, call, () => sendLines(call, run()));
        return SENT;
      }
      // The answer is kept for a repeat with the same key: code must not run twice.
      return await api.once(call, async () => ({ status: 200, body: await gatherCode(run()) }), false);
    },
  );

  api.add(
    {
      method: "get",
      path: "/v1/sandboxes/{id}/code/contexts",
      tag: "code",
      summary: "List kernels",
      scope: "sandbox:exec",
      answers: {
        200: { description: "The kernels", schema: z.object({ items: z.array(codeContextSchema) }) },
      },
    },
    async (call) => ({
      status: 200,
      body: { items: await (await serverOf(call)).contexts(call.signal) },
    }),
  );

  api.add(
    {
      method: "post",
      path: "/v1/sandboxes/{id}/code/contexts",
      tag: "code",
      summary: "Start a kernel with variables of its own",
      scope: "sandbox:exec",
      body: createCodeContextSchema,
      answers: { 201: { description: "The kernel", schema: codeContextSchema } },
    },
    async (call) =>
      await api.once(
        call,
        async () => ({
          status: 201,
          body: await (await serverOf(call)).createContext(call.body, call.signal),
        }),
        false,
      ),
  );

  api.add(
    {
      method: "post",
      path: `${CONTEXT_PATH}/restart`,
      tag: "code",
      summary: "Start a kernel anew; its variables are gone",
      scope: "sandbox:exec",
      answers: { 200: { description: "It is there again", schema: z.object({ restarted: z.boolean() }) } },
    },
    async (call) =>
      await api.once(
        call,
        async () => {
          await (await serverOf(call)).restartContext(call.param("context_id"), call.signal);
          return { status: 200, body: { restarted: true } };
        },
        false,
      ),
  );

  api.add(
    {
      method: "delete",
      path: CONTEXT_PATH,
      tag: "code",
      summary: "End a kernel",
      scope: "sandbox:exec",
      answers: { 200: { description: "It is gone", schema: z.object({ deleted: z.boolean() }) } },
    },
    async (call) => {
      await (await serverOf(call)).deleteContext(call.param("context_id"), call.signal);
      return { status: 200, body: { deleted: true } };
    },
  );
}

/** Lines are kept nowhere: a repeat with the same key is refused rather than run. */
async function onceAtMost(
  deps: RouteDeps,
  call: Call<unknown, unknown>,
  run: () => Promise<void>,
): Promise<void> {
  if (call.idempotencyKey === undefined) return await run();
  await deps.idempotency.run({
    slot: idempotencySlot(call.caller.scope, routeOf(call.incoming), call.idempotencyKey),
    body: call.rawBody,
    resumable: false,
    signal: call.signal,
    run: async () => {
      await run();
      return { status: 200, body: null };
    },
    recover: () =>
      Promise.reject(
        new CodedError(
          "conflict",
          "the code with this Idempotency-Key has been run and its lines are kept nowhere; it is not run again",
        ),
      ),
  });
}

/** A refusal before the first line keeps its status; after it only a broken connection says that the answer is not whole. */
async function sendLines(call: Call<unknown, unknown>, progress: AsyncGenerator<CodeLine>): Promise<void> {
  let writer: NdjsonWriter | undefined;
  try {
    for await (const line of withKeepalives(progress)) {
      writer ??= new NdjsonWriter(call.outgoing, call.signal);
      await writer.write(line);
    }
    writer ??= new NdjsonWriter(call.outgoing, call.signal);
    writer.end();
  } catch (error) {
    if (writer !== undefined) call.outgoing.destroy();
    throw error;
  }
}
