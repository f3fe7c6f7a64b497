import { constants } from "node:fs";
import { open, symlink } from "node:fs/promises";
import { join } from "node:path";
import { run } from "@torpor/base";

/** Names in the machine's directory. */
const GATE = "restore.gate";
const IMAGE = "restore.image";
/** The longest a timer can be: it waits for as long as its machine does, and is ended with it. */
const WAIT_MS = 2 ** 31 - 1;
const RESTORE_TIMEOUT_MS = 60_000;

/**
 * A `runsc restore` that has been started before its image is known: starting the runtime's program is a good part of a
 * restore. It waits at opening its log, a FIFO that nobody reads yet, and then takes the image from a link made meanwhile.
 */
export class PrimedRestore {
  readonly #directory: string;
  readonly #abort = new AbortController();
  readonly #done: Promise<unknown>;
  #hasEnded = false;

  private constructor(
    directory: string,
    launch: (flags: string[], imageDir: string, signal: AbortSignal, timeoutMs: number) => Promise<unknown>,
  ) {
    this.#directory = directory;
    this.#done = launch(
      [`--log=${join(directory, GATE)}`],
      join(directory, IMAGE),
      this.#abort.signal,
      WAIT_MS,
    ).finally(() => {
      this.#hasEnded = true;
    });
    this.#done.catch(() => {}); // looked at by restore; one that is not used is not missed
  }

  /** @param launch runs `runsc <flags> restore` of that directory. @throws when the FIFO cannot be made */
  static async start(
    directory: string,
    launch: (flags: string[], imageDir: string, signal: AbortSignal, timeoutMs: number) => Promise<unknown>,
  ): Promise<PrimedRestore> {
    await run(["mkfifo", "-m", "600", join(directory, GATE)]);
    return new PrimedRestore(directory, launch);
  }

  /** Whether it is no use any more: it has ended before it was told what to restore. */
  get isSpent(): boolean {
    return this.#hasEnded;
  }

  /** Lets it restore `imageDir`, and waits for that. To be called once. @throws what went wrong with the restore */
  async restore(imageDir: string, signal: AbortSignal | undefined): Promise<void> {
    await symlink(imageDir, join(this.#directory, IMAGE));
    const abort = (): void => this.#abort.abort();
    const timer = setTimeout(abort, RESTORE_TIMEOUT_MS);
    signal?.addEventListener("abort", abort, { once: true });
    if (signal?.aborted) abort();
    // Opened for as long as it runs, so that a line to its log is no error to it; what it may say fits the pipe.
    const gate = await open(join(this.#directory, GATE), constants.O_RDONLY | constants.O_NONBLOCK);
    try {
      await this.#done;
    } finally {
      await gate.close();
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
    }
  }
}
