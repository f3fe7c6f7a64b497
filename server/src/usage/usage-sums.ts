import {
  addQuantities,
  costOf,
  type MeteredState,
  NO_QUANTITIES,
  type Prices,
  type Quantities,
  quantitiesIn,
  type SandboxState,
  type UsageSums as ToldSums,
} from "@torpor/protocol";
import type { UsagePart } from "./usage-part.ts";

/** A snapshot takes what an image does. */
const asState = (state: MeteredState): SandboxState => (state === "snapshot" ? "hibernated" : state);

const round = (value: number): number => Math.round(value * 1e6) / 1e6;

/** Adds up parts, each with the prices of its account. */
export class UsageSums {
  cost = 0;
  readonly #currencies = new Set<string>();
  #saved = 0;
  #wasted = 0;
  #quantities: Quantities = NO_QUANTITIES;
  readonly #seconds = { running: 0, paused: 0, hibernated: 0 };
  readonly #counts = { cpu: 0, peak: 0, in: 0, out: 0, idle: 0, uncertainMs: 0 };

  add(part: UsagePart, prices: Prices): void {
    // Amounts are times the seconds already.
    const held = quantitiesIn(asState(part.state), part, 1);
    this.#currencies.add(prices.currency);
    const cost = costOf(held, prices);
    this.#quantities = addQuantities(this.#quantities, held);
    this.cost += cost;
    if (part.state === "hibernated") this.#saved += costOf(quantitiesIn("running", part, 1), prices) - cost;
    const idle = {
      cpu: part.idle_cpu,
      memory_mb: part.idle_memory_mb,
      disk_mb: part.idle_disk_mb,
      image_bytes: 0,
    };
    this.#wasted += costOf(quantitiesIn("running", idle, 1), prices);
    if (part.state === "running" || part.state === "paused" || part.state === "hibernated")
      this.#seconds[part.state] += part.seconds;
    const counts = this.#counts;
    counts.cpu += part.cpu_seconds;
    counts.peak = Math.max(counts.peak, part.memory_peak_bytes);
    counts.in += part.network_in_bytes;
    counts.out += part.network_out_bytes;
    counts.idle += part.idle_seconds;
    counts.uncertainMs += part.uncertain_ms;
  }

  rounded(): ToldSums {
    const [seconds, held, counts] = [this.#seconds, this.#quantities, this.#counts];
    return {
      seconds: {
        running: round(seconds.running),
        paused: round(seconds.paused),
        hibernated: round(seconds.hibernated),
      },
      vcpu_seconds: round(held.vcpu_seconds),
      memory_gib_seconds: round(held.memory_gib_seconds),
      disk_gib_seconds: round(held.disk_gib_seconds),
      image_gib_seconds: round(held.image_gib_seconds),
      cpu_seconds: round(counts.cpu),
      memory_peak_bytes: counts.peak,
      network_in_bytes: Math.round(counts.in),
      network_out_bytes: Math.round(counts.out),
      idle_seconds: round(counts.idle),
      currency: this.#currencies.size === 1 ? ([...this.#currencies][0] ?? null) : null,
      cost: round(this.cost),
      saved_by_sleeping: round(this.#saved),
      wasted_by_idling: round(this.#wasted),
      uncertain_seconds: counts.uncertainMs / 1_000,
    };
  }
}
