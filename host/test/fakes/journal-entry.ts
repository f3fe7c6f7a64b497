import { machineSpecSchema, type ResolvedMachineSpec } from "@torpor/protocol";
import type { MachineEntry } from "../../src/journal.ts";
import { processIdentity } from "../../src/process-identity.ts";

/** The one process sure to live: this one. */
export const OWN_PROCESS = { pid: process.pid, startTime: processIdentity(process.pid)?.startTime ?? 0 };

export const TEST_SPEC: ResolvedMachineSpec = machineSpecSchema.parse({
  generation: 1,
  template: "base",
  tenant: "acme",
  cpu: 1,
  memory_mb: 512,
  disk_mb: 4096,
  network: "internet",
  env: {},
  deadline_unix_ms: null,
  on_expire: "destroy",
});

/** A running machine as the journal holds it, with what a test changes of it. */
export function journalEntry(changes: Partial<MachineEntry> = {}): MachineEntry {
  return {
    id: "m",
    slot: 1,
    state: "running",
    spec: { ...TEST_SPEC },
    generation: 1,
    machineId: "0123456789abcdef0123456789abcdef",
    settings: { env: {}, user: "user", workdir: "/home/user" },
    templateHash: "aa",
    driver: "gvisor",
    pid: 1,
    startTime: 1,
    address: "127.0.0.1",
    accessToken: "token",
    hostKey: "key",
    deadlineUnixMs: null,
    lastActivityAt: 0,
    image: null,
    createdAt: 0,
    startedAt: 0,
    endedAt: null,
    reason: null,
    message: null,
    attestation: null,
    source: "cold",
    ...changes,
  };
}
