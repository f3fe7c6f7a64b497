import { CodedError, processSchema, type SandboxProcess } from "@torpor/protocol";
import { z } from "zod";
import { attachExec } from "../guest/exec.ts";
import type { GuestClient, ListedProcess } from "../guest/guest-client.ts";
import { GuestRefusal } from "../host/answer-error.ts";
import { type Call, routeOf, SENT } from "../http/api.ts";
import { keyedId } from "../http/keyed-id.ts";
import { readBody } from "../http/read-body.ts";
import { followOptions, sendEvents } from "./exec-routes.ts";
import { idempotencySlot } from "../store/idempotency-store.ts";
import { guestFor } from "./file-work.ts";
import type { RouteDeps } from "./route-deps.ts";

/** Input a command is sent in one request, bytes. */
const MAX_INPUT_BYTES = 8 * 1024 * 1024;
/** One message to the guest carries this much, so that no buffer on the way grows with the input. */
const INPUT_CHUNK_BYTES = 32 * 1024;

const signalSchema = z.strictObject({
  signal: z
    .string()
    .regex(/^(SIG)?[A-Z][A-Z0-9]{1,9}$/, "must be the name of a signal, e.g. SIGTERM")
    .default("SIGTERM")
    .describe("Sent to the whole process group. Default SIGTERM."),
});

const inputQuery = z.strictObject({
  close: z.enum(["true", "false", "1", "0"]).optional().describe("Close standard input after this."),
});

/** See, follow, signal and feed what runs in a sandbox. */
export function addProcessRoutes(deps: RouteDeps): void {
  const { api } = deps;
  api.add(
    {
      method: "get",
      path: "/v1/sandboxes/{id}/processes",
      tag: "exec",
      summary: "List the commands that run",
      scope: "sandbox:read",
      answers: {
        200: {
          description: "Commands started through the API and still running",
          schema: z.object({ items: z.array(processSchema) }),
        },
      },
    },
    async (call) => {
      const { guest } = await guestFor(deps, call);
      const { processes = [] } = await processWork(
        "list the processes",
        guest.unary<{ processes?: ListedProcess[] }>("process.Process/List", {}, call.signal),
      );
      return { status: 200, body: { items: processes.map(toProcess) } };
    },
  );

  api.add(
    {
      method: "get",
      path: "/v1/sandboxes/{id}/processes/{process}/output",
      tag: "exec",
      summary: "Follow a command that was started before",
      description:
        "`process` is a pid or an exec_id. NDJSON: the output that is still kept first (`dropped_bytes` says how much is not), then what comes, then the end. Leaving does not end the command.",
      scope: "sandbox:read",
      answers: { 200: { description: "Events, as of exec's stream", mediaType: "application/x-ndjson" } },
    },
    async (call) => {
      const { record, host } = await deps.sandboxes.requireRunning(call.caller.scope, call.param("id"));
      deps.activity.note(record);
      const named = call.param("process");
      const target = { record, host };
      const process = /^\d{1,10}$/.test(named) ? { pid: Number(named) } : { execId: named };
      await sendEvents(
        deps,
        call,
        attachExec(target, process, followOptions(deps, target, call.signal)),
        named,
      );
      return SENT;
    },
  );

  api.add(
    {
      method: "post",
      path: "/v1/sandboxes/{id}/processes/{process}/signal",
      tag: "exec",
      summary: "Send a signal to a command's whole process group",
      scope: "sandbox:exec",
      body: signalSchema,
      answers: { 200: { description: "Sent", schema: z.object({ signal: z.string() }) } },
    },
    async (call) =>
      await api.once(
        call,
        async () => {
          const { guest } = await guestFor(deps, call);
          const signal = call.body.signal.replace(/^SIG/, "");
          const message = { process: selector(call), signal: `SIGNAL_SIG${signal}` };
          await processWork(
            `send SIG${signal} to process ${call.param("process")}`,
            guest.unary("process.Process/SendSignal", message, call.signal),
          );
          return { status: 200, body: { signal: `SIG${signal}` } };
        },
        false,
      ),
  );

  api.add(
    {
      method: "post",
      path: "/v1/sandboxes/{id}/processes/{process}/stdin",
      tag: "exec",
      summary: "Write to a command's standard input",
      description: `The raw body, at most ${MAX_INPUT_BYTES / 1024 / 1024} MiB a request. Waits while the command does not read. With an Idempotency-Key a request that is sent again, with the same body, goes on where the first broke off: no byte is written twice. That standard input is closed, or was never open, is a conflict whose details hold \`"stdin": "closed"\`.`,
      scope: "sandbox:exec",
      query: inputQuery,
      rawBody: "application/octet-stream",
      answers: {
        200: { description: "Written", schema: z.object({ bytes: z.number().int(), closed: z.boolean() }) },
      },
    },
    async (call) => {
      const input = await readBody(call.incoming, MAX_INPUT_BYTES);
      const close = call.query.close === "true" || call.query.close === "1";
      const { guest } = await guestFor(deps, call);
      await processWork(`write to process ${call.param("process")}`, sendInput(guest, call, input, close));
      return { status: 200, body: { bytes: input.length, closed: close } };
    },
  );
}

async function sendInput(
  guest: GuestClient,
  call: Call<unknown, unknown>,
  input: Buffer,
  close: boolean,
): Promise<void> {
  const process = selector(call);
  const { idempotencyKey: key } = call;
  const id =
    key === undefined
      ? undefined
      : keyedId(idempotencySlot(call.caller.scope, routeOf(call.incoming), key), input);
  for (let offset = 0; offset < input.length; offset += INPUT_CHUNK_BYTES) {
    const stdin = input.subarray(offset, offset + INPUT_CHUNK_BYTES).toString("base64");
    await guest.input(process, { stdin }, call.signal, id && `${id}:${offset}`);
  }
  if (!close) return;
  const torpor = id === undefined ? undefined : { inputId: `${id}:close` };
  await guest.unary("process.Process/CloseStdin", { process, torpor }, call.signal);
}

function selector(call: Call<unknown, unknown>): { pid: number } | { torpor: { execId: string } } {
  const named = call.param("process");
  return /^\d{1,10}$/.test(named) ? { pid: Number(named) } : { torpor: { execId: named } };
}

async function processWork<T>(tried: string, work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    if (!(error instanceof GuestRefusal)) throw error;
    const message = `could not ${tried}: ${error.message}`;
    if (error.guestCode === "not_found")
      throw new CodedError("process_not_found", `${message}; list what runs with GET .../processes`, {
        cause: error,
      });
    // The protocol says `internal` when standard input is closed or was never open.
    if (error.guestCode === "internal" && /stdin/.test(error.message))
      throw new CodedError("conflict", message, { cause: error, details: { stdin: "closed" } });
    throw new CodedError(error.code, message, { cause: error });
  }
}

function toProcess({ pid, tag, config, torpor }: ListedProcess): SandboxProcess {
  return {
    pid,
    exec_id: torpor?.execId ?? null,
    cmd: config?.cmd ?? "",
    args: config?.args ?? [],
    cwd: config?.cwd ?? null,
    user: torpor?.user ?? null,
    tag: tag ?? null,
    started_at: torpor?.startedAt ?? null,
  };
}
