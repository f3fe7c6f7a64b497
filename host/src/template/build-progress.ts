/** One step of a template build, for a progress bar per stage. */
export interface BuildProgress {
  /** Machine name of the stage, one of `BUILD_STAGES`. */
  stage: BuildStage;
  /** What is being done, for a person. */
  label: string;
  /** How much of this stage is done, 0 to 1; never falls within a stage. */
  fraction: number;
}

/** In the order in which they happen. */
export const BUILD_STAGES = [
  "prepare",
  "index",
  "bootstrap",
  "download",
  "unpack",
  "configure",
  "setup",
  "finish",
  "digest",
  "commit",
] as const;
type BuildStage = (typeof BUILD_STAGES)[number];

const BYTES_PER_UNIT: Record<string, number> = { B: 1, kB: 1e3, MB: 1e6, GB: 1e9 };

/** `12.3 MB`, as apt writes sizes, in bytes. */
function parseSize(number: string, unit: string): number {
  return Number(number.replaceAll(",", "")) * (BYTES_PER_UNIT[unit] ?? 1);
}

/**
 * Follows mmdebstrap's output (with `--verbose`, so apt's and dpkg's too). It installs twice: Debian's essential
 * packages, here the stage `bootstrap`, then the recipe's, here `download`, `unpack` and `configure`.
 */
export class MmdebstrapProgress {
  readonly #report: (progress: BuildProgress) => void;
  #round: "none" | "essential" | "recipe" = "none";
  #packages = 0;
  #unpacked = 0;
  #configured = 0;
  #bytesTotal = 0;
  #bytesFetched = 0;

  constructor(report: (progress: BuildProgress) => void) {
    this.#report = report;
  }

  /** Takes one line of output. Lines that say nothing about progress are ignored. */
  line(line: string): void {
    if (line.startsWith("I: ")) return this.#headline(line);
    if (this.#round === "none") {
      if (line.startsWith("Get:"))
        this.#report({ stage: "index", label: "Reading package lists", fraction: 0.5 });
      return;
    }
    const count = /^\d+ upgraded, (\d+) newly installed/.exec(line);
    if (count !== null) this.#startRound(Number(count[1]));
    const need = /^Need to get ([\d.,]+) (B|kB|MB|GB)/.exec(line);
    if (need !== null) this.#bytesTotal = parseSize(need[1] ?? "0", need[2] ?? "B");
    const got = /^Get:\d+ .* \[([\d.,]+) (B|kB|MB|GB)\]$/.exec(line);
    if (got !== null) {
      this.#bytesFetched += parseSize(got[1] ?? "0", got[2] ?? "B");
      this.#downloading();
    }
    if (line.startsWith("Unpacking ")) {
      this.#unpacked += 1;
      this.#installing("unpack", "Unpacking", line, this.#unpacked);
    }
    if (line.startsWith("Setting up ")) {
      this.#configured += 1;
      this.#installing("configure", "Setting up", line, this.#configured);
    }
  }

  #headline(line: string): void {
    if (line.includes("running apt-get update"))
      this.#report({ stage: "index", label: "Reading package lists", fraction: 0 });
    if (line.includes("downloading packages with apt")) {
      this.#report({ stage: "index", label: "Reading package lists", fraction: 1 });
      this.#round = "essential";
      this.#startRound(0);
    }
    if (line.includes("installing remaining packages")) {
      this.#report({ stage: "bootstrap", label: "Debian's essential packages", fraction: 1 });
      this.#round = "recipe";
      this.#startRound(0);
    }
    if (line.includes("cleaning package lists") && this.#round === "recipe") {
      this.#report({ stage: "configure", label: "All packages set up", fraction: 1 });
    }
  }

  #startRound(packages: number): void {
    this.#packages = packages;
    this.#unpacked = 0;
    this.#configured = 0;
    this.#bytesTotal = 0;
    this.#bytesFetched = 0;
  }

  #downloading(): void {
    const fraction = this.#bytesTotal === 0 ? 1 : Math.min(1, this.#bytesFetched / this.#bytesTotal);
    const label = `Downloading ${mb(this.#bytesFetched)} of ${mb(Math.max(this.#bytesTotal, this.#bytesFetched))} MB`;
    if (this.#round === "essential") this.#report({ stage: "bootstrap", label, fraction: fraction / 3 });
    else this.#report({ stage: "download", label, fraction });
  }

  #installing(stage: "unpack" | "configure", verb: string, line: string, done: number): void {
    const total = Math.max(this.#packages, done);
    const name = (line.slice(verb.length + 1).split(/[ :]/)[0] ?? "").trim();
    const label = `${verb} ${name} (${done} of ${total})`;
    if (this.#round === "essential") {
      // apt handles essential packages one by one, so both counts rise together.
      const fraction = 1 / 3 + (this.#unpacked + this.#configured) / (3 * total);
      this.#report({ stage: "bootstrap", label, fraction: Math.min(1, fraction) });
      return;
    }
    if (stage === "unpack" && done === 1)
      this.#report({ stage: "download", label: "Downloaded", fraction: 1 });
    this.#report({ stage, label, fraction: done / total });
  }
}

/** Wraps a listener so that fractions stay within 0 to 1 and never fall within one stage. */
export function monotone(listener: (progress: BuildProgress) => void): (progress: BuildProgress) => void {
  const reached = new Map<BuildStage, number>();
  return (progress) => {
    const fraction = Math.max(reached.get(progress.stage) ?? 0, Math.min(1, Math.max(0, progress.fraction)));
    reached.set(progress.stage, fraction);
    listener({ ...progress, fraction });
  };
}

function mb(bytes: number): string {
  return (bytes / 1e6).toFixed(1);
}
