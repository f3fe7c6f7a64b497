import fc from "fast-check";
import { CodedError, type EndReason } from "@torpor/protocol";
import type { MortalWorld } from "./mortal-world.ts";

/** One thing a client, the host or fate does. `target` picks among the sandboxes known by then. */
export type Step =
  | { do: "create"; key: string | null; persistent: boolean; tenant?: string }
  | { do: "session"; key: string; tenant: string }
  | { do: "restore"; target: number; tenant: string }
  | { do: "destroy" | "get" | "promote" | "fork" | "snapshot"; target: number }
  | { do: "move"; target: number; verb: "pause" | "resume" | "hibernate" | "wake" }
  | { do: "ttl"; target: number; seconds: number }
  | { do: "hostMove"; target: number; verb: "pause" | "resume" | "hibernate" | "wake"; silent: boolean }
  | { do: "hostEnd"; target: number; reason: EndReason; silent: boolean }
  | { do: "fault"; on: "PUT" | "DELETE" | "PATCH" | "POST" | "GET"; kind: "error" | "drop" | "drop-after" }
  | { do: "reconcile" };

/** Steps at once, and what becomes of the server meanwhile. */
export interface Round {
  steps: Step[];
  /** The server is killed at this point of its work; null: it lives. */
  killAt: number | null;
  /** The host is away while the steps run. */
  hostAway: boolean;
}

/** Three tenants on one server, and what they hold must never meet. */
const tenant = fc.constantFrom("acme", "globex", "initech");
const verb = fc.constantFrom("pause", "resume", "hibernate", "wake", "hibernate", "wake");
const target = fc.nat(4);
const step: fc.Arbitrary<Step> = fc.oneof(
  {
    weight: 3,
    arbitrary: fc.record({
      do: fc.constant("create"),
      key: fc.option(fc.constantFrom("k1", "k2", "k3")),
      persistent: fc.boolean(),
      tenant,
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constant("session"), key: fc.constantFrom("s1", "s2"), tenant }),
  },
  { weight: 2, arbitrary: fc.record({ do: fc.constant("restore"), target, tenant }) },
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constantFrom("destroy", "get", "promote", "fork", "snapshot"),
      target,
    }),
  },
  { weight: 8, arbitrary: fc.record({ do: fc.constant("move"), target, verb }) },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constant("ttl"), target, seconds: fc.integer({ min: 100, max: 9_000 }) }),
  },
  {
    weight: 3,
    arbitrary: fc.record({ do: fc.constant("hostMove"), target, verb, silent: fc.boolean() }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      do: fc.constant("hostEnd"),
      target,
      reason: fc.constantFrom("ttl_expired", "oom", "runtime_crashed", "idle"),
      silent: fc.boolean(),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      do: fc.constant("fault"),
      on: fc.constantFrom("PUT", "DELETE", "PATCH", "POST", "GET"),
      kind: fc.constantFrom("error", "drop", "drop-after"),
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant("reconcile") }) },
) as fc.Arbitrary<Step>;

export const rounds: fc.Arbitrary<Round[]> = fc.array(
  fc.record({
    steps: fc.array(step, { minLength: 2, maxLength: 8, size: "max" }),
    killAt: fc.option(fc.integer({ min: 1, max: 120 }), { freq: 2 }),
    hostAway: fc
      .boolean()
      .map((away) => away)
      .chain((away) => (away ? fc.boolean() : fc.constant(false))),
  }),
  { minLength: 3, maxLength: 12, size: "max" },
);

/** What clients were told, to be held against what is true in the end. */
export class Told {
  /** Ids of creates and forks answered with success. */
  readonly made = new Set<string>();
  readonly ended = new Set<string>();
  /** Tenant of each snapshot that was taken. */
  readonly snapshots = new Map<string, string>();
  readonly byKey = new Map<string, Set<string>>();
  /** Deadline a client was told last, and how many changes of it are not known to have come to nothing since. */
  readonly deadlines = new Map<string, { at: string | null; disturbed: boolean }>();

  known(index: number): string | undefined {
    const ids = [...this.made];
    return ids.length === 0 ? undefined : ids[index % ids.length];
  }
}

/** Runs one step and notes what the client was told. */
export async function run(world: MortalWorld, told: Told, step: Step): Promise<void> {
  const id = "target" in step && step.do !== "restore" ? told.known(step.target) : undefined;
  if ("target" in step && step.do !== "restore" && id === undefined) return;
  const path = `/v1/sandboxes/${id}`;
  switch (step.do) {
    case "create": {
      const json = { template: "base", persistent: step.persistent, tenant: step.tenant ?? "acme" };
      const headers: Record<string, string> = step.key === null ? {} : { "idempotency-key": step.key };
      // A key is one body's: another one would be refused.
      if (step.key !== null) Object.assign(json, { persistent: step.key === "k1", tenant: "acme" });
      const { status, body } = await world.call("POST", "/v1/sandboxes", json, headers);
      if (status !== 201) return;
      const made = String(body["id"]);
      told.made.add(made);
      if (step.key !== null) {
        const ids = told.byKey.get(step.key) ?? new Set();
        told.byKey.set(step.key, ids.add(made));
      }
      return;
    }
    case "session": {
      const { status, body } = await world.call("POST", "/v1/sessions", {
        template: "base",
        tenant: step.tenant,
        key: step.key,
      });
      if (status === 200 || status === 201) told.made.add((body["sandbox"] as { id: string }).id);
      return;
    }
    case "destroy": {
      const { status } = await world.call("DELETE", path);
      if (status === 200) told.ended.add(String(id));
      return;
    }
    case "get":
      await world.call("GET", path);
      return;
    case "promote":
      told.deadlines.set(String(id), { at: null, disturbed: true });
      await world.call("POST", `${path}/promote`, { persistent: true, reason: "model" });
      return;
    case "fork": {
      const { status, body } = await world.call("POST", `${path}/fork`, { count: 2 });
      if (status !== 201) return;
      for (const child of body["children"] as { sandbox?: { id: string } }[])
        if (child.sandbox !== undefined) told.made.add(child.sandbox.id);
      return;
    }
    case "snapshot": {
      const { status, body } = await world.call("POST", `${path}/snapshots`, {});
      if (status === 201) told.snapshots.set(String(body["id"]), String(body["tenant"]));
      return;
    }
    case "restore": {
      const [id, owner] = [...told.snapshots].at(step.target % Math.max(told.snapshots.size, 1)) ?? [];
      if (id === undefined) return;
      const json = { from_snapshot: id, tenant: step.tenant };
      const { status, body } = await world.call("POST", "/v1/sandboxes", json);
      if (status !== 201) return;
      if (owner !== step.tenant) throw new Error(`snapshot ${id} of ${owner} was given to ${step.tenant}`);
      told.made.add(String(body["id"]));
      return;
    }
    case "move":
      await world.call("POST", `${path}/${step.verb}`);
      return;
    case "ttl": {
      const before = told.deadlines.get(String(id));
      const mine = { at: null as string | null, disturbed: true };
      told.deadlines.set(String(id), mine);
      const { status, body } = await world.call("PATCH", `${path}/lifecycle`, { ttl_seconds: step.seconds });
      // Refused for good: what was told before still holds.
      if (status === 410 && before !== undefined && told.deadlines.get(String(id)) === mine)
        told.deadlines.set(String(id), before);
      if (status === 200) Object.assign(mine, { at: body["expires_at"], disturbed: false });
      return;
    }
    case "hostMove":
      await world.host.move(String(id), step.verb, { silent: step.silent }).catch(() => {});
      return;
    case "hostEnd":
      world.host.end(String(id), step.reason, { silent: step.silent });
      return;
    case "fault":
      world.host.fault({
        on: new RegExp(`^${step.on} /v1/(machines|snapshots)`),
        kind: step.kind,
        error: new CodedError("host_unavailable", "told to fail"),
        times: 2,
      });
      return;
    case "reconcile":
      world.server.watch.reconcileSoon();
  }
}
