import { closeSync, constants, openSync, symlinkSync } from "node:fs";
import { run } from "@torpor/base";

/** The longest a timer can be: it waits for as long as nothing is known for it to do. */
const WAIT_MS = 2 ** 31 - 1;

/** Runs runsc with these flags before its command. */
export type Launch = (flags: string[], signal: AbortSignal, timeoutMs: number) => Promise<unknown>;

/**
 * A runsc command that has been started before it is known what it is to work on: starting the runtime's program is a good
 * part of a restore, and some of a checkpoint. It waits at opening its log, a FIFO that nobody reads yet, and then finds what
 * it is for behind links made meanwhile.
 */
export class PrimedCommand {
  readonly #gate: string;
  readonly #abort = new AbortController();
  readonly #done: Promise<unknown>;
  #hasEnded = false;

  private constructor(gate: string, launch: Launch) {
    this.#gate = gate;
    this.#done = launch([`--log=${gate}`], this.#abort.signal, WAIT_MS).finally(() => {
      this.#hasEnded = true;
    });
    this.#done.catch(() => {}); // looked at by run; one that is not used is not missed
  }

  /** @param gate where the FIFO is made. @throws when it cannot be made */
  static async start(gate: string, launch: Launch): Promise<PrimedCommand> {
    await run(["mkfifo", "-m", "600", gate]);
    return new PrimedCommand(gate, launch);
  }

  /** Whether it is no use any more: it has ended before it was told what to work on. */
  get isSpent(): boolean {
    return this.#hasEnded;
  }

  /** Ends it, and waits for that. */
  async cancel(): Promise<void> {
    this.#abort.abort();
    await this.#done.catch(() => {});
  }

  /**
   * Lets it go on, and waits until it has ended. To be called once.
   *
   * @param links paths that its command names, and what they are to lead to
   * @throws what went wrong with the command
   */
  async run(
    links: Readonly<Record<string, string>>,
    { timeoutMs, signal }: { timeoutMs: number; signal: AbortSignal | undefined },
  ): Promise<void> {
    const abort = (): void => this.#abort.abort();
    let isLate = false;
    const timer = setTimeout(() => {
      isLate = true;
      abort();
    }, timeoutMs);
    signal?.addEventListener("abort", abort, { once: true });
    if (signal?.aborted) abort();
    let gate: number | undefined;
    try {
      // At once: each costs less than to be waited for.
      for (const [path, target] of Object.entries(links)) symlinkSync(target, path);
      // Opened for as long as it runs, so that a line to its log is no error to it; what it may say fits the pipe.
      gate = openSync(this.#gate, constants.O_RDONLY | constants.O_NONBLOCK);
      await this.#done;
    } catch (error) {
      throw isLate ? new Error(`runsc was not done after ${timeoutMs} ms`, { cause: error }) : error;
    } finally {
      if (gate !== undefined) closeSync(gate);
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
    }
  }
}
