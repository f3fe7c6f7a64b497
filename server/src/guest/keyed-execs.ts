import type { Clock } from "@torpor/base";
import { CodedError } from "@torpor/protocol";
import type { BodyHashes } from "../http/body-hashes.ts";
import { keyedId, slotName } from "../http/keyed-id.ts";
import type { IdempotencySlot } from "../store/idempotency-store.ts";
import type { ExecProgress } from "./exec.ts";

/** Twice as long as the guest remembers a command by its id: until then a repeat never starts it again. */
const REMEMBERED_MS = 10 * 60_000;
/** The oldest are forgotten first; about 300 bytes each. */
const MAX_REMEMBERED = 50_000;

interface KeyedExec {
  execId: string;
  bodyHash: string;
  at: number;
  /** Whether it has started, once that is known. */
  begun: Promise<boolean>;
}

/** How a keyed command is reached: `start` may be sent again with the same id, `attach` never starts anything. */
export interface KeyedExecWays {
  start(execId: string): AsyncGenerator<ExecProgress>;
  attach(execId: string): AsyncGenerator<ExecProgress>;
}

/**
 * Makes commands with an `Idempotency-Key` run once, without a write to the store: the key becomes the command's id, and
 * the guest runs one id once for as long as it remembers it (5 minutes after the command's end), whichever server asks
 * and however often it was restarted. What is remembered here refuses a key that comes with another body, and a repeat after
 * a wake without memory, in which the guest has forgotten everything: such a command is run anew by a server that does not
 * remember it either.
 */
export class KeyedExecs {
  readonly #clock: Clock;
  readonly #bodyHashes: BodyHashes;
  readonly #known = new Map<string, KeyedExec>();

  constructor(clock: Clock, bodyHashes: BodyHashes) {
    this.#clock = clock;
    this.#bodyHashes = bodyHashes;
  }

  /**
   * Starts the command of a key, or follows the one that was started with it. The events must be read.
   *
   * @throws CodedError idempotency_mismatch for a key that was used with another body; `conflict` from the events when
   *   the command was run and its outcome is kept no longer
   */
  async open(
    slot: IdempotencySlot,
    body: Buffer,
    signal: AbortSignal,
    ways: KeyedExecWays,
  ): Promise<{ execId: string; replayed: boolean; progress: AsyncGenerator<ExecProgress> }> {
    const name = slotName(slot);
    const bodyHash = this.#bodyHashes.of(body);
    for (;;) {
      this.#forgetOld();
      const known = this.#known.get(name);
      if (known === undefined) break;
      if (known.bodyHash !== bodyHash) {
        throw new CodedError(
          "idempotency_mismatch",
          `Idempotency-Key ${slot.key} was used on this route with another body; use a new key for a new request`,
        );
      }
      if (await known.begun)
        return { execId: known.execId, replayed: true, progress: again(ways.attach(known.execId)) };
      if (signal.aborted)
        throw new CodedError(
          "client_closed_request",
          "the client left while it waited for the first with its key",
        );
    }
    const execId = keyedId(slot, body);
    let tell: (started: boolean) => void = () => {};
    const begun = new Promise<boolean>((resolve) => (tell = resolve));
    this.#known.set(name, { execId, bodyHash, at: this.#clock.monotonic(), begun });
    return { execId, replayed: false, progress: this.#begin(name, ways.start(execId), tell) };
  }

  async *#begin(
    name: string,
    progress: AsyncGenerator<ExecProgress>,
    tell: (started: boolean) => void,
  ): AsyncGenerator<ExecProgress> {
    let started = false;
    try {
      for await (const step of progress) {
        if (step.type === "started") {
          started = true;
          tell(true);
        }
        yield step;
      }
    } finally {
      if (!started) {
        this.#known.delete(name);
        tell(false);
      }
    }
  }

  #forgetOld(): void {
    const before = this.#clock.monotonic() - REMEMBERED_MS;
    for (const [name, { at }] of this.#known) {
      if (at >= before && this.#known.size <= MAX_REMEMBERED) return;
      this.#known.delete(name);
    }
  }
}

async function* again(progress: AsyncGenerator<ExecProgress>): AsyncGenerator<ExecProgress> {
  try {
    yield* progress;
  } catch (error) {
    if (!(error instanceof CodedError) || error.code !== "process_not_found") throw error;
    throw new CodedError(
      "conflict",
      "the command with this Idempotency-Key has been run, but its outcome is no longer kept; it is not run again",
      { cause: error },
    );
  }
}
