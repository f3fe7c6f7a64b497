import {
  CodedError,
  type CreatedSandbox,
  createdSandboxSchema,
  createSandboxSchema,
  LIMITS,
  newSandboxId,
  SANDBOX_STATES,
  type Sandbox,
  type SandboxState,
  sandboxSchema,
  templateNameSchema,
  tenantSchema,
} from "@torpor/protocol";
import { z } from "zod";
import { type Answer, type Call, keptAnswer, routeOf } from "../http/api.ts";
import type { KeyedRun } from "../http/idempotency.ts";
import { type CreatePlan, wantedMachine } from "../sandbox/create-plan.ts";
import { idempotencySlot } from "../store/idempotency-store.ts";
import type { SandboxRecord } from "../store/sandbox-record.ts";
import type { RouteDeps } from "./route-deps.ts";
import { pageCursor, pageLimit, pageSchema, shownPage } from "./shown-page.ts";
import { shownSandbox } from "./shown-sandbox.ts";

/** How long a retried create waits for one that a server which died left half-done. */
const RESUME_WAIT_MS = 45_000;

const LIVE_STATES = SANDBOX_STATES.filter((state) => state !== "destroyed");

const statesSchema = z
  .string()
  .transform((text, context): readonly SandboxState[] => {
    if (text === "all") return [];
    const states = text.split(",").map((state) => state.trim());
    const unknown = states.find((state) => !SANDBOX_STATES.some((known) => known === state));
    if (unknown !== undefined) {
      context.addIssue({
        code: "custom",
        message: `must be 'all' or states separated by commas out of ${SANDBOX_STATES.join(", ")}`,
      });
      return z.NEVER;
    }
    return states as SandboxState[];
  })
  .describe("States separated by commas, or `all`. Default: all but `destroyed`.");

const listQuery = z
  .object({
    state: statesSchema.optional(),
    tenant: tenantSchema.optional(),
    template: templateNameSchema.optional(),
    limit: pageLimit,
    cursor: pageCursor,
  })
  .catchall(z.string());

/** Create, list, get and delete sandboxes. */
export function addSandboxRoutes(deps: RouteDeps): void {
  const { api, sandboxes, sandboxStore } = deps;
  const shown = (record: SandboxRecord): Sandbox => shownSandbox(deps, record);

  api.add(
    {
      method: "post",
      path: "/v1/sandboxes",
      tag: "sandboxes",
      summary: "Create a sandbox",
      description:
        "Answers 201 when the sandbox is usable: the first exec works. Ephemeral by default: it ends with its TTL. With `persistent: true` and a tenant it lives until its owner ends it, and sleeps when idle. A client that leaves without an Idempotency-Key leaves nothing behind; with one, the same request finds the sandbox.",
      scope: "sandbox:write",
      body: createSandboxSchema,
      answers: { 201: { description: "The sandbox, usable", schema: createdSandboxSchema } },
    },
    async (call) => {
      await sandboxes.foretell(call.caller.scope, wantedMachine(call.body));
      if (call.idempotencyKey !== undefined) return await createOnce(deps, call, shown);
      const { scope } = call.caller;
      const plan = await sandboxes.plan(scope, call.body);
      const record = await sandboxes.create(scope, plan, { isAbandoned: () => call.signal.aborted });
      call.note({ sandboxId: record.id, tenant: record.tenant });
      return { status: 201, body: created(shown(record), plan) };
    },
  );

  api.add(
    {
      method: "get",
      path: "/v1/sandboxes",
      tag: "sandboxes",
      summary: "List sandboxes, newest first",
      description:
        "Filters: state, tenant, template, and `metadata.<key>=<value>` (several must all match). Reads records only: it wakes and extends nothing.",
      scope: "sandbox:read",
      query: listQuery,
      answers: {
        200: {
          description: "One page",
          schema: pageSchema(sandboxSchema),
        },
      },
    },
    async (call) => {
      const {
        state = LIVE_STATES,
        tenant,
        template,
        limit = LIMITS.defaultPageSize,
        cursor,
        ...others
      } = call.query;
      const page = await sandboxStore.list(call.caller.scope, {
        states: state,
        metadata: metadataFilter(others),
        limit,
        ...(tenant === undefined ? {} : { tenant }),
        ...(template === undefined ? {} : { template }),
        ...(cursor === undefined ? {} : { cursor }),
      });
      return { status: 200, body: shownPage(page, shown) };
    },
  );

  api.add(
    {
      method: "get",
      path: "/v1/sandboxes/{id}",
      tag: "sandboxes",
      summary: "Get a sandbox",
      description: "Ended ones stay readable for 7 days.",
      scope: "sandbox:read",
      answers: { 200: { description: "The sandbox", schema: sandboxSchema } },
    },
    async (call) => ({
      status: 200,
      body: shown(await sandboxes.require(call.caller.scope, call.param("id"))),
    }),
  );

  api.add(
    {
      method: "delete",
      path: "/v1/sandboxes/{id}",
      tag: "sandboxes",
      summary: "Destroy a sandbox",
      description:
        "Legal in every state; answers when it is gone, with its final record. Again: the same record.",
      scope: "sandbox:write",
      answers: { 200: { description: "The final record", schema: sandboxSchema } },
    },
    async (call) => {
      const { scope } = call.caller;
      const record = await sandboxes.require(scope, call.param("id"));
      return { status: 200, body: shown(await sandboxes.destroy(record, "user", scope.keyId)) };
    },
  );
}

/** What a create answers: with the advice that it followed, if it asked for one. */
function created(sandbox: Sandbox, plan?: CreatePlan): CreatedSandbox {
  return plan?.advice == null ? sandbox : { ...sandbox, advice: plan.advice };
}

async function createOnce(
  deps: RouteDeps,
  call: Call<unknown, z.output<typeof createSandboxSchema>>,
  shown: (record: SandboxRecord) => Sandbox,
): Promise<Answer> {
  const { scope } = call.caller;
  const answer = (record: SandboxRecord, plan?: CreatePlan): { status: number; body: string } => {
    call.note({ sandboxId: record.id, tenant: record.tenant });
    return { status: 201, body: JSON.stringify(created(shown(record), plan)) };
  };
  const kept = await deps.idempotency.run({
    slot: idempotencySlot(scope, routeOf(call.incoming), call.idempotencyKey ?? ""),
    body: call.rawBody,
    firstProgress: newSandboxId(),
    resumable: true,
    signal: call.signal,
    run: async (run) => {
      const earlier = run.resumed ? await resumedCreate(deps, call, run) : undefined;
      if (earlier !== undefined) return answer(earlier);
      const id = run.resumed ? newSandboxId() : (run.progress ?? newSandboxId());
      if (run.resumed) await run.noteProgress(id);
      const plan = await deps.sandboxes.plan(scope, call.body);
      return answer(await deps.sandboxes.create(scope, plan, { id }), plan);
    },
  });
  return keptAnswer(kept);
}

/** What became of a create whose server died: the sandbox once it is settled, or undefined when it was undone. */
async function resumedCreate(
  deps: RouteDeps,
  call: Call<unknown, unknown>,
  run: KeyedRun,
): Promise<SandboxRecord | undefined> {
  if (run.progress === null) return undefined;
  const until = deps.clock.monotonic() + RESUME_WAIT_MS;
  for (;;) {
    const record = await deps.sandboxStore.find(call.caller.scope, run.progress);
    if (record === undefined || record.reason === "create_failed") return undefined;
    if (record.state !== "creating") return record;
    if (deps.clock.monotonic() > until || call.signal.aborted) {
      throw new CodedError(
        "idempotency_in_progress",
        `sandbox ${record.id} of the first request with this key is still being settled after a server restart; send the same again`,
      );
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

function metadataFilter(query: Record<string, string>): Record<string, string> {
  const filter: Record<string, string> = {};
  const unknown: { path: string; message: string }[] = [];
  for (const [name, value] of Object.entries(query)) {
    if (name.startsWith("metadata.") && name.length > "metadata.".length)
      filter[name.slice("metadata.".length)] = value;
    else
      unknown.push({
        path: name.slice(0, 100),
        message:
          "is not a query parameter of this request; accepted: state, tenant, template, metadata.<key>, limit, cursor",
      });
  }
  if (Object.keys(filter).length > LIMITS.maxMetadataEntries)
    unknown.push({
      path: "metadata",
      message: `at most ${LIMITS.maxMetadataEntries} pairs can be asked for`,
    });
  if (unknown.length > 0)
    throw new CodedError(
      "invalid_request",
      unknown.map(({ path, message }) => `${path} ${message}`).join("; "),
      { details: { issues: unknown } },
    );
  return filter;
}
