import type { Machine } from "@torpor/protocol";
import type { MachineHandle } from "../driver/driver.ts";
import type { GuestClient } from "./guest-client.ts";

/** A machine whose processes stand. */
export interface Live {
  handle: MachineHandle;
  guest: GuestClient;
  oomKills: number;
  lastOomAt: number | null;
}

/** What this process holds of a machine. Variants own their resources; the journal's state is another matter. */
export type Phase =
  | { name: "creating"; abort: AbortController; done: Promise<Machine> }
  | { name: "running" | "paused"; live: Live }
  | {
      name: "moving";
      to: "hibernated" | "running" | "snapshot";
      live: Live | undefined;
      abort: AbortController;
      done: Promise<unknown>;
    }
  | { name: "hibernated" }
  | { name: "ending"; done: Promise<Machine> }
  /** Its end failed, e.g. since a process outlived KILL; the watch tries again. */
  | { name: "unended"; live: Live | undefined };
