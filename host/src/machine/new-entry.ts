import { randomBytes } from "node:crypto";
import type { Clock } from "@torpor/base";
import type { ResolvedMachineSpec } from "@torpor/protocol";
import type { MachineEntry } from "../journal.ts";
import type { SecretBox } from "../secret-box.ts";
import { momentOf } from "./boot-moment.ts";
import { newHostKey } from "./guest-client.ts";

/** The journal's first word on a machine: what is meant to be. */
export function newEntry(
  id: string,
  { secrets, ...spec }: ResolvedMachineSpec,
  driver: string,
  clock: Clock,
  secretBox: Pick<SecretBox, "seal">,
): MachineEntry {
  const now = clock.now();
  const deadline = spec.deadline_unix_ms;
  return {
    id,
    slot: null,
    state: "creating",
    spec,
    generation: spec.generation,
    machineId: newMachineId(),
    settings: {
      env: spec.env,
      user: "user",
      workdir: "/home/user",
      secrets: secretBox.seal(secrets, spec.tenant),
    },
    templateHash: "",
    driver,
    pid: null,
    startTime: null,
    address: null,
    accessToken: randomBytes(24).toString("hex"),
    hostKey: newHostKey(),
    deadlineUnixMs: deadline,
    deadlineMoment: deadline === null ? null : momentOf(deadline, clock),
    maxLifetimeMoment: spec.max_lifetime_unix_ms === null ? null : momentOf(spec.max_lifetime_unix_ms, clock),
    lastActivityAt: now,
    image: null,
    createdAt: now,
    startedAt: null,
    endedAt: null,
    reason: null,
    message: null,
    attestation: null,
    source: null,
  };
}

/** A machine id as systemd writes them: 32 hexadecimal digits. */
export function newMachineId(): string {
  return randomBytes(16).toString("hex");
}
