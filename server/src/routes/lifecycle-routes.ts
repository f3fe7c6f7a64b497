import {
  canonicalNetwork,
  CodedError,
  hibernateSchema,
  isEnding,
  type Lifecycle,
  lifecycleSchema,
  type Machine,
  promoteSchema,
  sandboxSchema,
  updateLifecycleSchema,
  updateNetworkSchema,
} from "@torpor/protocol";
import { z } from "zod";
import { GuestClient } from "../guest/guest-client.ts";
import { readAll } from "../host/read-all.ts";
import { refused } from "../sandbox/create-plan.ts";
import type { SandboxRecord } from "../store/sandbox-record.ts";
import type { RouteDeps } from "./route-deps.ts";
import { shownSandbox } from "./shown-sandbox.ts";

const MOVES = {
  pause: {
    summary: "Stop a sandbox in RAM",
    description: "Its processes stand still and keep their memory; at once. Already paused: 200 too.",
  },
  resume: {
    summary: "Let a paused sandbox go on",
    description: "Already running: 200 too. One that is hibernated is refused: wake it.",
  },
  hibernate: {
    summary: "Put a sandbox to storage",
    description:
      "With `memory: false` its files alone, see there. Else memory, processes and files go to one image; nothing of it stays in RAM. The call of a command that runs ends with outcome `lost`; the command itself, like everything inside, goes on after the wake and is followed by its exec_id, unless the memory is not kept. A failure leaves the sandbox running. Joins a hibernation under way, unless it keeps memory where `memory` says otherwise, or the other way round: 409 `conflict`. One that sleeps already is left as it is, and `image.memory` tells what it keeps; with `memory: false` one that sleeps with its memory is a 409 `conflict`: wake it first.",
  },
  wake: {
    summary: "Wake a hibernated sandbox",
    description:
      "The next generation of the same sandbox: same id, same processes, or, of one that sleeps without memory, a fresh boot with the same files. Joins a wake under way; resumes a paused one. A failure leaves it hibernated.",
  },
} as const;

const LIST_TIMEOUT_MS = 1_000;
const MAX_LIST_BYTES = 4 * 1024 * 1024;
/** From inside a sandbox, so it may be anything. */
const listSchema = z.object({
  processes: z
    .array(
      z.object({
        pid: z.number().optional(),
        torpor: z.object({ execId: z.string().optional(), startedAt: z.string().optional() }).optional(),
      }),
    )
    .optional(),
});

/** Sleep and wake, the three clocks, and the change between the two shapes. */
export function addLifecycleRoutes(deps: RouteDeps): void {
  const { api, sandboxes, activity } = deps;

  for (const verb of ["pause", "resume", "hibernate", "wake"] as const) {
    api.add(
      {
        method: "post",
        path: `/v1/sandboxes/{id}/${verb}`,
        tag: "lifecycle",
        ...MOVES[verb],
        scope: "sandbox:write",
        ...(verb === "hibernate" ? { body: hibernateSchema } : {}),
        answers: { 200: { description: "The sandbox afterwards", schema: sandboxSchema } },
      },
      async (call) => {
        // Repeating it does no harm, so a key needs no memory.
        const record = await sandboxes.move(call.caller.scope, call.param("id"), verb, call.body?.memory);
        if (verb === "resume" || verb === "wake") activity.note(record);
        return { status: 200, body: shownSandbox(deps, record) };
      },
    );
  }

  api.add(
    {
      method: "get",
      path: "/v1/sandboxes/{id}/lifecycle",
      tag: "lifecycle",
      summary: "Get a sandbox's clocks, and why it is not idle",
      description: "Wakes and extends nothing.",
      scope: "sandbox:read",
      answers: { 200: { description: "State, clocks and what holds it awake", schema: lifecycleSchema } },
    },
    async (call) => {
      const record = await sandboxes.require(call.caller.scope, call.param("id"));
      const machine = await machineOf(deps, record);
      const running = machine?.state === "running" ? await runningCommands(deps, record, call.signal) : [];
      return { status: 200, body: lifecycleOf(deps, record, machine, running) };
    },
  );

  api.add(
    {
      method: "patch",
      path: "/v1/sandboxes/{id}/lifecycle",
      tag: "lifecycle",
      summary: "Change a sandbox's clocks",
      description:
        "What is left out stays. A TTL is counted from now. Answers when the host's journal and the record both hold the change. Wakes nothing.",
      scope: "sandbox:write",
      body: updateLifecycleSchema,
      answers: { 200: { description: "The sandbox with its new clocks", schema: sandboxSchema } },
    },
    async (call) => {
      const record = await sandboxes.setLifecycle(call.caller.scope, call.param("id"), call.body);
      return { status: 200, body: shownSandbox(deps, record) };
    },
  );

  api.add(
    {
      method: "patch",
      path: "/v1/sandboxes/{id}/network",
      tag: "lifecycle",
      summary: "Change what a sandbox may reach",
      description:
        "The whole policy anew. In force, and durable, when it answers: connections that it forbids are cut. A hibernated sandbox wakes under it; nothing is woken. Copies made later have it too.",
      scope: "sandbox:write",
      body: updateNetworkSchema,
      answers: { 200: { description: "The sandbox with its new policy", schema: sandboxSchema } },
    },
    async (call) => {
      const network = canonicalNetwork(call.body.network);
      const record = await sandboxes.setNetwork(call.caller.scope, call.param("id"), network);
      return { status: 200, body: shownSandbox(deps, record) };
    },
  );

  api.add(
    {
      method: "post",
      path: "/v1/sandboxes/{id}/promote",
      tag: "lifecycle",
      summary: "Make an ephemeral sandbox persistent, or a persistent one ephemeral",
      description:
        "It gets the clocks of its new shape: persistent, no TTL and asleep when idle; ephemeral, a TTL of 300 s from now and no idle timeout. Who asked and why is kept. The tenant never changes: naming another is refused.",
      scope: "sandbox:write",
      body: promoteSchema,
      answers: { 200: { description: "The sandbox in its new shape", schema: sandboxSchema } },
    },
    async (call) => {
      const { scope, key } = call.caller;
      const { persistent, reason, tenant } = call.body;
      const before = await sandboxes.require(scope, call.param("id"));
      if (isEnding(before.state)) await sandboxes.requireLiving(scope, before.id);
      if (tenant !== undefined && tenant !== before.tenant) {
        throw refused(
          "tenant",
          `is ${tenant}, but sandbox ${before.id} belongs to tenant ${before.tenant}, and that never changes`,
        );
      }
      await deps.auditStore.add(before, {
        action: persistent ? "promote" : "demote",
        reason,
        key_id: key.id,
        at: deps.clock.now(),
      });
      const record = await sandboxes.setPersistent(scope, before.id, persistent);
      call.note({ promote: persistent, reason });
      return { status: 200, body: shownSandbox(deps, record) };
    },
  );
}

/** What the host says of a living sandbox; undefined when it cannot be asked: the record alone answers then. */
async function machineOf(deps: RouteDeps, record: SandboxRecord): Promise<Machine | undefined> {
  if (isEnding(record.state)) return undefined;
  try {
    const host = await deps.placement.of(record.host);
    return await host.client.findMachine(record);
  } catch (error) {
    if (error instanceof CodedError && error.code === "host_unavailable") return undefined;
    throw error;
  }
}

/** The commands that run, asked without counting as use; none when the agent does not answer soon. */
async function runningCommands(
  deps: RouteDeps,
  record: SandboxRecord,
  signal: AbortSignal,
): Promise<Lifecycle["holds"]> {
  try {
    const host = await deps.placement.of(record.host);
    const answer = await new GuestClient(host.client, record).http("POST", "/process.Process/List", {
      headers: {
        "content-type": "application/json",
        "connect-protocol-version": "1",
        "x-torpor-passive": "1",
      },
      body: Buffer.from("{}"),
      headTimeoutMs: LIST_TIMEOUT_MS,
      signal,
    });
    const text = (await readAll(answer, MAX_LIST_BYTES)).toString("utf8");
    const { processes = [] } = listSchema.parse(JSON.parse(text));
    return processes.map(({ pid, torpor }) => {
      const startedAt = Date.parse(torpor?.startedAt ?? "");
      const since = Number.isNaN(startedAt) ? (record.startedAt ?? record.createdAt) : startedAt;
      return { kind: "exec", what: torpor?.execId ?? `pid ${pid}`, since: new Date(since).toISOString() };
    });
  } catch (error) {
    deps.log.info({ op: "lifecycle", outcome: "commands not known", sandboxId: record.id, err: error });
    return [];
  }
}

function lifecycleOf(
  deps: RouteDeps,
  record: SandboxRecord,
  machine: Machine | undefined,
  running: Lifecycle["holds"],
): Lifecycle {
  const sandbox = shownSandbox(deps, record);
  const { image, retention_seconds: retention } = sandbox;
  const retainedUntil =
    image === null || retention === null
      ? null
      : new Date(Date.parse(image.created_at) + retention * 1_000).toISOString();
  const ttlAt = sandbox.expires_at;
  const counted = deps.clock.now();
  return {
    id: sandbox.id,
    state: sandbox.state,
    reason: sandbox.reason,
    persistent: sandbox.persistent,
    auto_wake: sandbox.auto_wake,
    hibernate_memory: sandbox.hibernate_memory,
    clocks: {
      ttl: {
        seconds: ttlAt === null ? null : Math.max(0, Math.ceil((Date.parse(ttlAt) - counted) / 1_000)),
        at: ttlAt,
        on_expire: sandbox.on_expire,
      },
      idle: {
        seconds: sandbox.idle_timeout_seconds,
        // A command in the background holds it, though the host asks after it only when the time is over.
        at: machine === undefined ? sandbox.idle_at : running.length > 0 ? null : machine.idle_at,
        on_idle: sandbox.on_idle,
      },
      retention: { seconds: retention, at: retainedUntil },
      max_lifetime: {
        seconds:
          record.maxLifetimeAt === null
            ? null
            : Math.max(0, Math.ceil((record.maxLifetimeAt - counted) / 1_000)),
        at: record.maxLifetimeAt === null ? null : new Date(record.maxLifetimeAt).toISOString(),
      },
    },
    last_activity_at: machine?.last_activity_at ?? sandbox.last_activity_at,
    last_activity: machine?.last_activity ?? null,
    // One that is followed, the host has named already.
    holds: [
      ...(machine?.holds ?? []),
      ...running.filter(({ what }) => machine?.holds.some((hold) => hold.what === what) !== true),
    ],
    reaped_because: sandbox.ended_at === null ? null : sandbox.reason,
  };
}
