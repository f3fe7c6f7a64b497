import { PassThrough, type Readable } from "node:stream";
import { type Sandbox, TorporError } from "@torpor/sdk";

/** What is sent at once of an input that comes faster than it is taken, bytes; one request of the API takes 8 MiB. */
const PIECE_BYTES = 1024 * 1024;

/** Standard input on its way to one command. */
export class StdinFeed {
  readonly #stdin: Readable;
  readonly #passed = new PassThrough({ highWaterMark: PIECE_BYTES });
  readonly #leave = new AbortController();

  constructor(stdin: Readable) {
    this.#stdin = stdin;
  }

  /**
   * Passes the input on as it comes, and its end. The command's own pace holds it up. A command that has closed its
   * standard input, or has ended, is given no more of it, as with a pipe.
   *
   * @throws TorporError when a piece could not be delivered; what the source fails with
   */
  async run(sandbox: Sandbox, execId: string): Promise<void> {
    const { signal } = this.#leave;
    const options = { signal, timeoutMs: 0 };
    this.#stdin.once("error", (error) => this.#passed.destroy(error));
    this.#stdin.pipe(this.#passed);
    try {
      // What has gathered meanwhile comes as one piece.
      for await (const piece of this.#passed) await sandbox.writeStdin(execId, piece as Buffer, options);
      await sandbox.writeStdin(execId, "", { ...options, close: true });
    } catch (error) {
      if (signal.aborted || wantsNoMore(error)) return;
      throw error;
    } finally {
      this.stop();
    }
  }

  /** Lets go of the input, so that it keeps this process no longer. */
  stop(): void {
    this.#leave.abort();
    this.#stdin.unpipe(this.#passed);
    this.#passed.destroy();
    this.#stdin.destroy();
  }
}

/** Whether the command has closed its standard input, or has ended. */
function wantsNoMore(error: unknown): boolean {
  if (!(error instanceof TorporError)) return false;
  return (
    error.code === "process_not_found" || (error.code === "conflict" && error.details["stdin"] === "closed")
  );
}
