import type { Clock } from "@torpor/base";
import type { MachineSample } from "@torpor/protocol";
import type { Driver } from "../driver/driver.ts";
import type { Live } from "./phase.ts";

/** As E2B's infrastructure samples. */
const EVERY_MS = 5_000;
/** An hour. */
const KEPT = 720;
/** A reading over less time than this says nothing of the CPU. */
const LEAST_SPAN_MS = 500;
const MIB = 1_048_576;

/** What is read at a sample; the machine itself is not asked. */
interface Sources {
  driver: Pick<Driver, "stats" | "occupancy">;
  clock: Clock;
  /** What the machine may have. */
  limits: { cpu: number; memory_mb: number; disk_mb: number };
}

/** Where the counting of CPU time began. */
interface Baseline {
  live: Live;
  cpuMs: number;
  /** On the monotonic clock. */
  at: number;
}

/**
 * What one machine used over the last hour in which it ran, every 5 s: some files of its cgroup read, and nothing of a
 * machine that is paused or asleep. Kept in memory alone: a restart of the host begins anew.
 */
export class MetricHistory {
  readonly #samples: MachineSample[] = [];
  #baseline: Baseline | undefined;

  /** Takes a sample if it is time to. To be called often, while the machine runs. */
  look(live: Live, sources: Sources): void {
    const { clock, driver } = sources;
    const now = clock.monotonic();
    if (this.#baseline?.live !== live) {
      // Of a new incarnation the counters begin anew.
      this.#baseline = { live, cpuMs: driver.stats(live.handle).cpuMs, at: now };
      return;
    }
    if (now - this.#baseline.at < EVERY_MS) return;
    const { sample, cpuMs } = this.#read(live, sources, this.#baseline);
    this.#baseline = { live, cpuMs, at: now };
    this.#samples.push(sample);
    if (this.#samples.length > KEPT) this.#samples.shift();
  }

  /**
   * The samples of that time, the oldest first, and one of now at their end while it runs.
   *
   * @param live undefined when it does not run
   * @param from to Unix milliseconds, both included
   */
  between(live: Live | undefined, sources: Sources, from: number, to: number): MachineSample[] {
    const all = [...this.#samples];
    if (live !== undefined) all.push(this.#read(live, sources, this.#baseline).sample);
    return all.filter(({ at_unix_ms: at }) => at >= from && at <= to);
  }

  #read(
    live: Live,
    { driver, clock, limits }: Sources,
    baseline: Baseline | undefined,
  ): { sample: MachineSample; cpuMs: number } {
    const { cpuMs, memoryBytes } = driver.stats(live.handle);
    const { cacheBytes, diskBytes } = driver.occupancy(live.handle);
    const spanMs = baseline?.live === live ? clock.monotonic() - baseline.at : 0;
    const last = this.#samples.at(-1)?.cpu_used_percent ?? 0;
    const usedMs = cpuMs - (baseline?.cpuMs ?? cpuMs);
    const percent =
      spanMs < LEAST_SPAN_MS ? last : Math.min(100, Math.max(0, (usedMs / spanMs / limits.cpu) * 100));
    const [memoryTotal, diskTotal] = [limits.memory_mb * MIB, limits.disk_mb * MIB];
    return {
      cpuMs,
      sample: {
        at_unix_ms: clock.now(),
        cpu_used_percent: Math.round(percent * 100) / 100,
        // The runtime's own memory is in it, beyond what the machine may have.
        memory_used_bytes: Math.min(memoryTotal, Math.max(0, memoryBytes - cacheBytes)),
        memory_cache_bytes: cacheBytes,
        disk_used_bytes: Math.min(diskTotal, diskBytes),
      },
    };
  }
}
