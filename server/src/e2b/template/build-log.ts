import type { Clock, Log } from "@torpor/base";
import type { BuildLogEntry, BuildLogLevel, BuildLogStore } from "../../store/build-log-store.ts";
import type { BuildRecord } from "../../store/template-store.ts";

const FLUSH_EVERY_MS = 200;
const MAX_LINE_CHARACTERS = 4_096;
/** Lines of one build that are kept, and what follows is dropped: `yes` in a build must not fill the disk. */
const MAX_LINES = 20_000;
/** Bound of one insert. */
const BATCH_LINES = 500;

export interface BuildLogOptions {
  store: BuildLogStore;
  build: BuildRecord;
  clock: Clock;
  log: Log;
}

/** The log of one build, written down a few times a second. */
export class BuildLog {
  readonly #options: BuildLogOptions;
  #waiting: BuildLogEntry[] = [];
  #seq = 0;
  #lines = 0;
  #cancel: (() => void) | undefined;
  #writing: Promise<void> = Promise.resolve();

  constructor(options: BuildLogOptions) {
    this.#options = options;
  }

  add(step: string | null, level: BuildLogLevel, message: string): void {
    this.#lines += 1;
    if (this.#lines > MAX_LINES + 1) return;
    const { clock } = this.#options;
    const text =
      this.#lines > MAX_LINES
        ? `more than ${MAX_LINES} lines: what follows is not kept`
        : message.replaceAll("\0", "").slice(0, MAX_LINE_CHARACTERS);
    this.#waiting.push({ at: clock.now(), level, message: text, step });
    this.#cancel ??= clock.after(FLUSH_EVERY_MS, () => void this.flush());
  }

  /** Writes what waits; afterwards all that was added before can be read. A store that fails costs lines, not the build. */
  flush(): Promise<void> {
    this.#cancel?.();
    this.#cancel = undefined;
    this.#writing = this.#writing.then(() => this.#write());
    return this.#writing;
  }

  async #write(): Promise<void> {
    const { store, build, log } = this.#options;
    while (this.#waiting.length > 0) {
      const batch = this.#waiting.splice(0, BATCH_LINES);
      try {
        await store.append(build, this.#seq, batch);
      } catch (error) {
        log.warn({ op: "template.log", outcome: "lines lost", buildId: build.id, err: error });
      }
      this.#seq += batch.length;
    }
  }
}

/** Cuts a stream of bytes into lines. */
export class Lines {
  readonly #onLine: (line: string) => void;
  readonly #decoder = new TextDecoder();
  #rest = "";

  constructor(onLine: (line: string) => void) {
    this.#onLine = onLine;
  }

  push(bytes: Buffer): void {
    const lines = (this.#rest + this.#decoder.decode(bytes, { stream: true })).split("\n");
    this.#rest = lines.pop() ?? "";
    for (const line of lines) this.#onLine(line.replace(/\r$/, ""));
    if (this.#rest.length >= MAX_LINE_CHARACTERS) this.end();
  }

  end(): void {
    if (this.#rest !== "") this.#onLine(this.#rest);
    this.#rest = "";
  }
}
