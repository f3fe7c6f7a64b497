import type { Clock, Log, SecretValues } from "@torpor/base";
import type { Driver } from "../driver/driver.ts";
import type { ImageStore } from "../image/image-store.ts";
import type { Router } from "../network/router.ts";
import type { SecretBox } from "../secret-box.ts";
import type { Capacity, Headroom } from "./capacity.ts";
import type { EventFeed } from "./event-feed.ts";
import type { MachineJournal } from "./machine-journal.ts";
import type { PristineMachine } from "./pool.ts";
import type { Sleep } from "./sleep.ts";
import type { Slots } from "./slots.ts";

/** What a template says of the machines made from it. */
interface SourceTemplate {
  hash: string;
  /** Environment beneath the sandbox's own, default user and working directory. */
  manifest: { env: Record<string, string>; user: string; workdir: string };
}

/** Supplies pristine machines by template name. */
export interface MachineSource {
  acquire(
    template: string,
    diskMib: number,
    signal: AbortSignal,
  ): Promise<PristineMachine & { template: SourceTemplate }>;
}

/** What every machine of a host works with. */
export interface MachineParts {
  journal: MachineJournal;
  driver: Driver;
  slots: Pick<Slots, "placeOf" | "claim" | "clear" | "release" | "stop">;
  router: Pick<Router, "setEgress">;
  source: MachineSource;
  images: ImageStore;
  sleep: Sleep;
  feed: EventFeed;
  secretBox: Pick<SecretBox, "seal" | "unseal">;
  /** Values that the log does not tell. */
  secretValues: Pick<SecretValues, "hold">;
  clock: Clock;
  log: Log;
  capacity: Capacity;
  headroom: () => Headroom;
  /** How long the agent of an idle machine may be silent before the machine is taken to have failed. */
  agentPatienceMs: number;
}
