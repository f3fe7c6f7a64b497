/**
 * The wire between server and host: HTTP over a unix socket or TCP, JSON, bearer host token.
 *
 *     GET    /v1/health                       HostHealth
 *     PUT    /v1/machines/{id}                MachineSpec -> 201 Machine (usable) or 200 (this id exists already)
 *     GET    /v1/machines                     { machines: Machine[] }
 *     GET    /v1/machines/{id}                Machine (ended ones too, for 7 days)
 *     PATCH  /v1/machines/{id}                MachineUpdate -> Machine
 *     DELETE /v1/machines/{id}?reason=user    Machine (ended; idempotent)
 *     ANY    /v1/machines/{id}/ports/{port}/* proxied to that port of the guest; on 49983 the host adds its tokens
 *     GET    /v1/machines/{id}/logs           text: console of the machine (PID 1), the last 1 MiB at most
 *     GET    /v1/events?after=N&wait_ms=M     HostEvents (long poll)
 *     GET    /v1/templates                    { templates: Template[] }
 *     POST   /v1/templates/{name}/build       NDJSON of TemplateBuildEvent
 *     DELETE /v1/templates/{name}             204
 *     POST   /v1/drain                        ends every machine, the pool and the network; 200 when all is gone
 *     GET    /metrics                         Prometheus text
 *
 * Errors use the public envelope (error-codes.ts). A proxied request to a machine that has ended answers 410
 * `sandbox_ended` with `details.reason`; one whose guest port refuses answers 503 `guest_unavailable`.
 */
import { z } from "zod";
import { sandboxIdSchema, templateNameSchema } from "./ids.ts";
import { type Attestation, envSchema, networkSchema } from "./sandbox.ts";
import type { EndReason } from "./states.ts";

export const machineSpecSchema = z.strictObject({
  generation: z.number().int().min(1),
  template: templateNameSchema,
  tenant: z.string(),
  cpu: z.number().positive(),
  memory_mb: z.number().int().positive(),
  disk_mb: z.number().int().positive(),
  network: networkSchema,
  env: envSchema,
  /** Wall-clock deadline, Unix milliseconds; null for none. */
  deadline_unix_ms: z.number().int().nullable(),
  on_expire: z.enum(["destroy"]),
});
export type MachineSpec = z.infer<typeof machineSpecSchema> & { id?: string };

export const machineUpdateSchema = z.strictObject({ deadline_unix_ms: z.number().int().nullable() });
export type MachineUpdate = z.infer<typeof machineUpdateSchema>;

export const machineIdSchema = sandboxIdSchema;

export type MachineState = "creating" | "running" | "ending" | "ended";

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
  network: "internet" | "none";
  created_at: string;
  started_at: string | null;
  deadline_unix_ms: number | null;
  ended_at: string | null;
  reason: EndReason | null;
  /** A sentence for a person: exit status, last console lines, which limit was hit. */
  message: string | null;
  attestation: Attestation | null;
  /** Where the machine came from: `pool` (a waiting restore), `shell` (restored into a waiting process), `cold`. */
  source: "pool" | "shell" | "cold" | null;
  /**
   * When the kernel last ended something inside for lack of memory, as of this answer; null when it never did. A command
   * that ended by SIGKILL after it started and before this is `oom`.
   */
  last_oom_at: string | null;
}

export interface HostEvent {
  seq: number;
  type: "started" | "ended" | "deadline_changed";
  machine_id: string;
  at: string;
  machine: Machine;
}

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
  machines: { running: number; creating: number };
  pool: { template: string; ready: number; target: number }[];
}
