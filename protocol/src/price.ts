import { z } from "zod";
import type { SandboxState } from "./states.ts";

const price = (description: string) => z.number().min(0).max(1_000_000).describe(description);

/** What is paid for what a sandbox holds. All in one currency, whichever the operator means. */
export const pricesSchema = z.strictObject({
  currency: z
    .string()
    .regex(/^[A-Z]{3}$/, "must be three capital letters, such as USD")
    .describe("ISO 4217. Shown beside amounts; nothing is converted."),
  vcpu_hour: price("One core held for an hour, used or not."),
  memory_gib_hour: price("One GiB of memory held for an hour."),
  disk_gib_month: price("One GiB of disk of an awake sandbox for a month of 30 days, as allotted."),
  image_gib_month: price(
    "One GiB that a hibernated sandbox or a snapshot takes on the disk, for a month of 30 days.",
  ),
});
export type Prices = z.infer<typeof pricesSchema>;

/**
 * What holds until an operator sets their own. Cores and memory as hosted sandbox services list them (0.000014 USD a
 * vCPU-second and 0.0000045 USD a GiB-second), images as block storage is listed (0.08 USD a GiB-month); the disk of
 * one that is awake is in the price of its core.
 */
export const DEFAULT_PRICES: Prices = {
  currency: "USD",
  vcpu_hour: 0.0504,
  memory_gib_hour: 0.0162,
  disk_gib_month: 0,
  image_gib_month: 0.08,
};

/** What a sandbox, or something like it, is allotted. */
export interface Allotment {
  cpu: number;
  memory_mb: number;
  disk_mb: number;
  /** What it sleeps in, or what a snapshot takes, bytes. */
  image_bytes: number;
}

/** What was held, each times the seconds for which it was. Quantities of several intervals are added up. */
export interface Quantities {
  vcpu_seconds: number;
  memory_gib_seconds: number;
  disk_gib_seconds: number;
  image_gib_seconds: number;
}

export const NO_QUANTITIES: Quantities = {
  vcpu_seconds: 0,
  memory_gib_seconds: 0,
  disk_gib_seconds: 0,
  image_gib_seconds: 0,
};

type Held = "compute" | "memory" | "disk" | "image";

/**
 * What each state holds. Compute begins when a sandbox is usable and stops where its end or its sleep is accepted: in
 * `hibernating` and `destroying` nothing of it is counted any more. One that is paused keeps its memory and no core.
 * Of one that has failed only its files are left.
 */
const HELD: Readonly<Record<SandboxState, readonly Held[]>> = {
  creating: [],
  running: ["compute", "memory", "disk"],
  pausing: ["compute", "memory", "disk"],
  paused: ["memory", "disk"],
  resuming: ["memory", "disk"],
  hibernating: ["disk"],
  hibernated: ["image"],
  waking: ["image"],
  snapshotting: ["compute", "memory", "disk"],
  failed: ["disk"],
  destroying: [],
  destroyed: [],
};

const MIB_PER_GIB = 1024;
const BYTES_PER_GIB = 1024 ** 3;

/** What a sandbox of that size holds in `seconds` in that state. */
export function quantitiesIn(state: SandboxState, allotment: Allotment, seconds: number): Quantities {
  const held = HELD[state];
  const when = (what: Held, amount: number): number => (held.includes(what) ? amount * seconds : 0);
  return {
    vcpu_seconds: when("compute", allotment.cpu),
    memory_gib_seconds: when("memory", allotment.memory_mb / MIB_PER_GIB),
    disk_gib_seconds: when("disk", allotment.disk_mb / MIB_PER_GIB),
    image_gib_seconds: when("image", allotment.image_bytes / BYTES_PER_GIB),
  };
}

/** Sum of two. */
export function addQuantities(one: Quantities, other: Quantities): Quantities {
  return {
    vcpu_seconds: one.vcpu_seconds + other.vcpu_seconds,
    memory_gib_seconds: one.memory_gib_seconds + other.memory_gib_seconds,
    disk_gib_seconds: one.disk_gib_seconds + other.disk_gib_seconds,
    image_gib_seconds: one.image_gib_seconds + other.image_gib_seconds,
  };
}

const SECONDS_PER_HOUR = 3_600;
const SECONDS_PER_MONTH = 30 * 86_400;

/** What that costs, in the currency of the prices; not rounded. The one place where a price is applied. */
export function costOf(quantities: Quantities, prices: Prices): number {
  return (
    (quantities.vcpu_seconds * prices.vcpu_hour + quantities.memory_gib_seconds * prices.memory_gib_hour) /
      SECONDS_PER_HOUR +
    (quantities.disk_gib_seconds * prices.disk_gib_month +
      quantities.image_gib_seconds * prices.image_gib_month) /
      SECONDS_PER_MONTH
  );
}
