import type { Machine } from "@torpor/protocol";
import type { MachineHandle } from "../driver/driver.ts";
import type { GuestClient } from "./guest-client.ts";

/** A machine's processes and the way to its agent. */
export interface Standing {
  handle: MachineHandle;
  guest: GuestClient;
}

/** A machine whose processes stand. */
export interface Live extends Standing {
  oomKills: number;
  lastOomAt: number | null;
}

/** Where a transition leads. */
export type Destination = "hibernated" | "running" | "paused" | "snapshot";

/** What this process holds of a machine. Variants own their resources; the journal's state is another matter. */
export type Phase =
  | { name: "creating"; abort: AbortController; done: Promise<Machine> }
  | { name: "running" | "paused"; live: Live }
  | {
      name: "moving";
      to: Destination;
      /** What set it off, when a renewal of the ttl would come too late. */
      cause: "ttl" | undefined;
      /** Of a hibernation: whether it keeps memory. */
      memory: boolean | undefined;
      live: Live | undefined;
      abort: AbortController;
      done: Promise<unknown>;
    }
  /** `uncleared`: the slot of an earlier incarnation that could not be cleared away; the watch tries again. */
  | { name: "hibernated"; uncleared: number | null }
  /** It has crashed, and what still runs of it is being ended; `done` never rejects. */
  | { name: "failing"; done: Promise<void> }
  /** Nothing of it runs; its files lie in the slot. `standing`: what runs of it could not be ended; the watch tries again. */
  | { name: "failed"; slot: number | null; standing: boolean }
  | { name: "ending"; done: Promise<Machine> }
  /** Its end failed, e.g. since a process outlived KILL; the watch tries again. */
  | { name: "unended"; slot: number | null };
