/**
 * The wire between server and host: HTTP over a unix socket or TCP, JSON, bearer host token.
 *
 *     GET    /v1/health                       HostHealth
 *     PUT    /v1/machines/{id}                MachineSpec -> 201 Machine (usable) or 200 (this id exists already)
 *     POST   /v1/expected?template=N&disk_mb=N   202; a hint that such a PUT is about to come
 *     GET    /v1/machines                     { machines: Machine[] }
 *     GET    /v1/machines/{id}                Machine (ended ones too, for 7 days); with ?settled_within_ms=N once it
 *                                             is neither paused nor on its way to another state, or after that time
 *     PATCH  /v1/machines/{id}                MachineUpdate -> Machine; in the journal, and in force, when it answers
 *     DELETE /v1/machines/{id}?reason=user    Machine (ended; idempotent)
 *     ANY    /v1/machines/{id}/ports/{port}/* proxied to that port of the guest, upgrades (WebSockets) too; on 49983 the
 *                                             host adds its tokens. PORT_HEADERS says what the server may add
 *     GET    /v1/machines/{id}/logs           text: console of the machine (PID 1), the last 1 MiB at most
 *     GET    /v1/machines/{id}/metrics        { samples: MachineSample[] }, oldest first; with ?from_unix_ms=N&to_unix_ms=M
 *                                             those of that time, one of now included while it runs
 *     GET    /v1/events?after=N&wait_ms=M     HostEvents (long poll)
 *     GET    /v1/templates                    { templates: Template[] }
 *     POST   /v1/templates/{name}/build       {image?} -> NDJSON of TemplateBuildEvent; `image` makes it from a container image
 *     POST   /v1/images                       ImageRequest -> likewise; the template's name is good in a MachineSpec alone
 *     DELETE /v1/templates/{name}             204
 *     POST   /v1/machines/{id}/pause|resume|wake    Machine; joins one under way, 200 when it is so already
 *     POST   /v1/machines/{id}/hibernate      {memory}, which may be left out -> Machine; likewise
 *     POST   /v1/machines/{id}/snapshots      {id, name, copies} -> 201 MachineSnapshot; the machine goes on
 *     GET    /v1/snapshots                    { snapshots: MachineSnapshot[] }
 *     GET    /v1/snapshots/{id}               MachineSnapshot
 *     DELETE /v1/snapshots/{id}               204; idempotent
 *     GET    /v1/findings                     { findings: HostFinding[] }: where journal and machine disagree
 *     POST   /v1/findings/repair              HostRepair: what was found is put right where that can be done
 *     POST   /v1/drain                        ends every machine, the pool and the network; 200 when all is gone
 *     GET    /metrics                         Prometheus text
 *
 * Errors use the public envelope (error-codes.ts). A proxied request to a machine that has ended answers 410
 * `sandbox_ended` with `details.reason`; one whose guest port refuses answers 503 `guest_unavailable`.
 */
import { z } from "zod";
import { guestPathSchema, userNameSchema } from "./exec.ts";
import { LIMITS } from "./limits.ts";
import { sandboxIdSchema, snapshotIdSchema, templateNameSchema } from "./ids.ts";
import { type NetworkPolicy, networkPolicySchema } from "./network-policy.ts";
import { type ActivityKind, type Attestation, envSchema, type HoldKind, secretsSchema } from "./sandbox.ts";
import type { EndReason } from "./states.ts";
import { imageTemplateSchema } from "./template.ts";

/** Headers between server and host on the ports of a guest; none of them reaches a program of the owner's. */
export const PORT_HEADERS = {
  /** The Host that the program is to see. Default `localhost:{port}`. */
  host: "x-torpor-forwarded-host",
  /** The Authorization that the program is to see. Default none. */
  authorization: "x-torpor-forwarded-authorization",
  /** `never`: a machine that sleeps stays asleep, and the answer is 409 `wrong_state`. It counts as use all the same. */
  wake: "x-torpor-wake",
  /** In a request: it is gone on with after a freeze cut it off, so that a freeze need not wait for its end. */
  resumable: "x-torpor-resumable",
  /** In an answer: it is the host's own, not one from inside. */
  isHostsOwn: "x-torpor-host-answer",
} as const;

export const machineSpecSchema = z.strictObject({
  generation: z.number().int().min(1),
  template: z.union([templateNameSchema, imageTemplateSchema]),
  tenant: z.string(),
  cpu: z.number().positive(),
  memory_mb: z.number().int().positive(),
  disk_mb: z.number().int().positive(),
  network: networkPolicySchema,
  env: envSchema,
  /** Environment whose values stand in no answer and no log, and on the disk only sealed. */
  secrets: secretsSchema.default({}),
  /** Wall-clock deadline, Unix milliseconds; null for none. */
  deadline_unix_ms: z.number().int().nullable(),
  on_expire: z.enum(["destroy", "hibernate"]),
  /** No owner activity for this long; null for never. */
  idle_timeout_seconds: z.number().int().positive().nullable().default(null),
  on_idle: z.enum(["hibernate", "pause", "destroy", "none"]).default("hibernate"),
  /** Whether a hibernation that says nothing of it keeps memory and processes, as those by its clocks. */
  hibernate_memory: z.boolean().default(true),
  /** How long a hibernation image is kept; null for ever. */
  retention_seconds: z.number().int().positive().nullable().default(null),
  /** Whether work asked of it wakes it. */
  auto_wake: z.boolean().default(true),
  /**
   * Set: its deadline does not run while it is hibernated, and a wake that finds none, or one that has passed, sets one so many
   * seconds from then. Null: it runs on, and none is set.
   */
  ttl_on_wake_seconds: z.number().int().positive().nullable().default(null),
  /** It is ended then (`max_lifetime`), whatever its clocks say and whether it sleeps; null for never. */
  max_lifetime_unix_ms: z.number().int().nullable().default(null),
  /** Restored from this snapshot instead of the template's golden one. */
  from_snapshot: snapshotIdSchema.nullable().default(null),
});
/** As the server sends it: what is left out takes its default. */
export type MachineSpec = z.input<typeof machineSpecSchema>;
/** As the host keeps it. */
export type ResolvedMachineSpec = z.output<typeof machineSpecSchema>;

/** Fields left out stay as they are. */
export const machineUpdateSchema = z.strictObject({
  deadline_unix_ms: z.number().int().nullable().optional(),
  on_expire: z.enum(["destroy", "hibernate"]).optional(),
  idle_timeout_seconds: z.number().int().positive().nullable().optional(),
  on_idle: z.enum(["hibernate", "pause", "destroy", "none"]).optional(),
  hibernate_memory: z.boolean().optional(),
  retention_seconds: z.number().int().positive().nullable().optional(),
  auto_wake: z.boolean().optional(),
  network: networkPolicySchema.optional(),
});
export type MachineUpdate = z.infer<typeof machineUpdateSchema>;

export const machineIdSchema = sandboxIdSchema;

export type MachineState =
  | "creating"
  | "running"
  | "paused"
  | "hibernating"
  | "hibernated"
  | "waking"
  | "snapshotting"
  /** Its processes have ended by themselves, or had to be: nothing runs, its files are kept for a look until it is ended. */
  | "failed"
  | "ending"
  | "ended";

/**
 * One physical machine that a sandbox was given: a runtime process with its slot, its address and its files, which serves
 * that once.
 */
export interface Incarnation {
  /** Counts those of a sandbox from 1, without a gap; a wake that failed counts too. */
  number: number;
  /** Random, made together with its place, before anybody's memory is in it; never used again. */
  id: string;
  address: string;
  /** As {@link Machine.source}; `image`: woken from a hibernation image. */
  source: "pool" | "shell" | "cold" | "snapshot" | "image";
  /** The snapshot or image whose memory, or files alone, went into it; null for the golden snapshot's. */
  from: string | null;
  generation: number;
  bound_at: string;
  /** Place of that among all that this host has given and taken back, counted up over its restarts. */
  bound_turn: number;
  /** When nothing of it was left; null while something is. */
  released_at: string | null;
  /** Likewise; null also when it could not be counted. */
  released_turn: number | null;
}

/** What a machine has used, counted on its host over all its incarnations. */
export interface MachineUse {
  cpu_seconds: number;
  /** The most memory that its newest incarnation held at once, the runtime's own included. */
  memory_peak_bytes: number;
  /** Over its network, in and out, what it exchanges with the host included. */
  network_in_bytes: number;
  network_out_bytes: number;
  /** Seconds it ran though nobody asked anything of it and it computed next to nothing; counted in half minutes. */
  idle_seconds: number;
}

export const NO_USE: MachineUse = {
  cpu_seconds: 0,
  memory_peak_bytes: 0,
  network_in_bytes: 0,
  network_out_bytes: 0,
  idle_seconds: 0,
};

/** What a machine used at one moment, as its host sees it. */
export interface MachineSample {
  at_unix_ms: number;
  /** Since the sample before: 100 when it used all the CPU it may have. */
  cpu_used_percent: number;
  /** Without pages of files that can be let go of; what the runtime needs for itself is in it. */
  memory_used_bytes: number;
  /** Such pages. */
  memory_cache_bytes: number;
  /** What its own changes to the file system take on the host's disk. */
  disk_used_bytes: number;
}

/** A change of what a machine holds: what is metered is the time between two. */
export interface MachineMove {
  /** Counts those of a machine from 1, without a gap. */
  number: number;
  /** `hibernating` and `ending`: from here on nothing of it computes for its owner. */
  to: "running" | "paused" | "hibernating" | "hibernated" | "failed" | "ending";
  at: string;
  /** What it sleeps in; 0 unless it is hibernated. */
  image_bytes: number;
  /** What it had used by then. */
  used: MachineUse;
  /**
   * It was noticed this much later, milliseconds: `at` is when the host last saw it as it was before. 0 for what the host saw
   * happen.
   */
  noticed_after_ms: number;
}

export interface Machine {
  id: string;
  state: MachineState;
  generation: number;
  template: string;
  /** Hash of the template it was restored from. */
  template_hash: string;
  driver: string;
  tenant: string;
  cpu: number;
  memory_mb: number;
  disk_mb: number;
  network: NetworkPolicy;
  created_at: string;
  started_at: string | null;
  deadline_unix_ms: number | null;
  ended_at: string | null;
  reason: EndReason | null;
  /** A sentence for a person: exit status, last console lines, which limit was hit. */
  message: string | null;
  attestation: Attestation | null;
  /** Where the machine came from: `pool` (a waiting restore), `shell` (restored into a waiting process), `cold`, `snapshot`. */
  source: "pool" | "shell" | "cold" | "snapshot" | null;
  on_expire: "destroy" | "hibernate";
  idle_timeout_seconds: number | null;
  on_idle: "hibernate" | "pause" | "destroy" | "none";
  hibernate_memory: boolean;
  retention_seconds: number | null;
  auto_wake: boolean;
  last_activity_at: string;
  /** What that was; null when it is not known any more. */
  last_activity: { kind: ActivityKind; what: string } | null;
  /** When it counts as idle, if nothing holds it and nothing more comes; null while something holds it, or without a timeout. */
  idle_at: string | null;
  /** What holds it awake now. */
  holds: { kind: HoldKind; what: string; since: string }[];
  /** What it wakes from, while hibernated. Without memory it boots, and no work wakes it: only who asks for that. */
  image: { id: string; size_bytes: number; created_at: string; memory: boolean } | null;
  /** The physical machines it has been given, the newest 32 at most, oldest first. */
  incarnations: Incarnation[];
  /** How long its last sleep took to write, and its last wake to be usable; null before the first. */
  took_ms: { hibernate: number | null; wake: number | null };
  /** What it held from when on, the newest 32 at most, oldest first. */
  moves: MachineMove[];
  /** As last counted, at most half a minute ago while it is awake. */
  used: MachineUse;
  /**
   * When the kernel last ended something inside for lack of memory, as of this answer; null when it never did. A command
   * that ended by SIGKILL after it started and before this is `oom`.
   */
  last_oom_at: string | null;
}

export interface HostEvent {
  seq: number;
  type:
    | "started"
    | "ended"
    | "failed"
    | "deadline_changed"
    | "network_changed"
    | "paused"
    | "resumed"
    | "hibernated"
    | "woken";
  machine_id: string;
  at: string;
  machine: Machine;
}

/** A snapshot as the host keeps it. */
export interface MachineSnapshot {
  id: string;
  name: string | null;
  machine_id: string;
  tenant: string;
  generation: number;
  template: string;
  template_hash: string;
  driver: string;
  driver_version: string;
  cpu: number;
  memory_mb: number;
  disk_mb: number;
  network: NetworkPolicy;
  size_bytes: number;
  created_at: string;
}

export const createSnapshotSchema = z.strictObject({
  id: snapshotIdSchema,
  name: z.string().max(128).nullable().default(null),
  /**
   * How many machines will be made from it at once, after which it is deleted: it is not made durable then, not listed, and
   * gone with the host's process. 0: a snapshot that is kept.
   */
  copies: z.number().int().min(0).max(LIMITS.maxForkCount).default(0),
  /** What commands in machines made from it start with, where they name nothing else. Default: as in the machine itself. */
  defaults: z
    .strictObject({
      env: envSchema,
      user: userNameSchema,
      workdir: guestPathSchema,
      /** What is started anew in them when they wake from files alone; otherwise it is thought to run already. */
      start: z
        .strictObject({
          command: z.string().min(1).max(LIMITS.maxStartCommandLength),
          user: userNameSchema,
          workdir: guestPathSchema,
        })
        .optional(),
    })
    .optional(),
});
export type SnapshotDefaults = NonNullable<z.output<typeof createSnapshotSchema>["defaults"]>;

export interface HostEvents {
  events: HostEvent[];
  /** Pass as `after` next time. */
  last_seq: number;
}

export interface HostHealth {
  host_id: string;
  version: string;
  driver: string;
  driver_version: string;
  acceleration: string;
  capacity: { cpus: number; memory_mb: number; disk_mb: number };
  /** `hibernated`: asleep in their images, using no memory and no CPU. */
  machines: { running: number; creating: number; hibernated: number };
  pool: PoolStatus[];
}

/** What waits for one template. */
export interface PoolStatus {
  template: string;
  /** Machines that wait restored, and how many are to. */
  ready: number;
  target: number;
  /** Runtime processes that wait empty, and how many are to. */
  empty: number;
  empty_target: number;
}

/** A disagreement between the host's journal and what is on the machine. */
export interface HostFinding {
  kind:
    | "record_unreadable"
    | "slot_unclaimed"
    | "image_orphan"
    | "image_missing"
    | "image_unreadable"
    | "machine_stuck";
  /** The sandbox, slot or image. */
  what: string;
  /** A sentence for a person. */
  message: string;
  /** What a repair does; null when it takes a person. */
  repair: string | null;
}

export interface HostRepair {
  repaired: HostFinding[];
  failed: { finding: HostFinding; error: string }[];
  /** What takes a person. */
  left: HostFinding[];
}
