import type { Clock, Log } from "@torpor/base";
import { CodedError, type ErrorEnvelope } from "@torpor/protocol";
import type { BodyHashes } from "./body-hashes.ts";
import type { IdempotencyRow, IdempotencySlot, IdempotencyStore } from "../store/idempotency-store.ts";
import { slotName } from "./keyed-id.ts";

/** An answer that can be kept and given again. */
export interface KeptAnswer {
  status: number;
  /** JSON text, or null for an answer that is not kept. */
  body: string | null;
}

/** What a first run, or one that takes over from a server that died, knows and may note. */
export interface KeyedRun {
  /** What the request had made or started when its server died; null when nothing is known. */
  readonly progress: string | null;
  /** Whether an earlier run of the same request broke off. */
  readonly resumed: boolean;
  noteProgress(progress: string): Promise<void>;
}

export interface KeyedRequest {
  slot: IdempotencySlot;
  body: Buffer;
  /** Noted together with the claim, before anything happens. */
  firstProgress?: string;
  /**
   * Whether it can go on from where a server that died left it. Without it the outcome is unknown and a repeat is
   * refused, since running twice is worse.
   */
  resumable: boolean;
  signal: AbortSignal;
  run(run: KeyedRun): Promise<KeptAnswer>;
  /** Gives the answer again when it was too large to keep. Default: a repeat is refused. */
  recover?(): Promise<KeptAnswer>;
}

export interface IdempotencyOptions {
  store: IdempotencyStore;
  bodyHashes: BodyHashes;
  /** This process, unlike any other. */
  owner: string;
  /** Whether other servers use the same store: then only a silent heartbeat proves an owner dead. */
  shared: boolean;
  clock: Clock;
  log: Log;
}

/** Larger answers are not kept, bytes. */
const MAX_KEPT_BYTES = 1024 * 1024;
const HEARTBEAT_MS = 10_000;
const DEAD_AFTER_MS = 35_000;
/** How long a repeat waits for the first. */
const MAX_WAIT_MS = 120_000;
const ASK_EVERY_MS = 100;
const KEY_PATTERN = /^[\x21-\x7e]{1,255}$/;

/** Makes requests with an `Idempotency-Key` happen once: repeats get the first one's answer, also after a restart. */
export class Idempotency {
  readonly #options: IdempotencyOptions;
  readonly #running = new Map<string, Promise<unknown>>();
  #cancelHeartbeat: (() => void) | undefined;

  constructor(options: IdempotencyOptions) {
    this.#options = options;
  }

  /** The key of a request, or undefined. @throws CodedError invalid_request */
  static keyOf(header: string | string[] | undefined): string | undefined {
    if (header === undefined) return undefined;
    if (typeof header === "string" && KEY_PATTERN.test(header)) return header;
    throw new CodedError(
      "invalid_request",
      "the Idempotency-Key header must be 1 to 255 printable ASCII characters without spaces",
      {
        details: {
          issues: [{ path: "idempotency-key", message: "must be 1 to 255 printable ASCII characters" }],
        },
      },
    );
  }

  /** @throws CodedError idempotency_mismatch, idempotency_in_progress, conflict, and what the request itself throws */
  async run(request: KeyedRequest): Promise<KeptAnswer & { replayed: boolean }> {
    const { store, bodyHashes, clock, owner } = this.#options;
    const bodyHash = bodyHashes.of(request.body);
    const name = slotName(request.slot);
    const until = clock.monotonic() + MAX_WAIT_MS;
    for (;;) {
      const first = this.#running.get(name);
      if (first !== undefined) {
        await this.#wait(first, until, request);
        // Its row now tells what came of it; fall through to reading it.
      }
      let finish: () => void = () => {};
      let kept: Promise<void> = Promise.resolve();
      if (this.#running.get(name) === undefined) {
        // Set before the first await below: a second request of this process waits instead of racing for the row.
        this.#running.set(name, new Promise<void>((resolve) => (finish = resolve)));
      } else continue;
      try {
        const claim = await store.claim(
          request.slot,
          bodyHash,
          owner,
          clock.now(),
          request.firstProgress ?? null,
        );
        if (claim === "claimed") {
          const ran = await this.#execute(request, request.firstProgress ?? null, false);
          kept = ran.kept;
          return { ...ran.answer, replayed: false };
        }
        if (claim.body_hash !== bodyHash) {
          throw new CodedError(
            "idempotency_mismatch",
            `Idempotency-Key ${request.slot.key} was used on this route with another body; use a new key for a new request`,
          );
        }
        if (claim.status !== null) return await this.#replay(request, claim, claim.status);
        if (this.#isDead(claim) && (await store.takeOver(claim, owner, clock.now()))) {
          if (!request.resumable) {
            throw new CodedError(
              "conflict",
              `the server stopped while the first request with Idempotency-Key ${request.slot.key} was under way, so its outcome is unknown; look at what it did, then use a new key`,
            );
          }
          const ran = await this.#execute(request, claim.progress, true);
          kept = ran.kept;
          return { ...ran.answer, replayed: true };
        }
      } finally {
        void kept.then(() => {
          this.#running.delete(name);
          finish();
        });
      }
      if (clock.monotonic() > until) throw inProgress(request);
      await new Promise((resolve) => setTimeout(resolve, ASK_EVERY_MS));
    }
  }

  /** Stops the heartbeats. */
  close(): void {
    this.#cancelHeartbeat?.();
  }

  /** Runs the request; its answer is in the row when `kept` resolves. */
  async #execute(
    request: KeyedRequest,
    progress: string | null,
    resumed: boolean,
  ): Promise<{ answer: KeptAnswer; kept: Promise<void> }> {
    const { store } = this.#options;
    this.#beat();
    let noted = progress;
    const run: KeyedRun = {
      progress,
      resumed,
      noteProgress: async (value) => {
        noted = value;
        await store.noteProgress(request.slot, value);
      },
    };
    let answer: KeptAnswer;
    try {
      answer = await request.run(run);
    } catch (error) {
      await this.#settleFailure(request, error, noted !== null && request.firstProgress === undefined);
      throw error;
    }
    const body = answer.body !== null && answer.body.length > MAX_KEPT_BYTES ? null : answer.body;
    if (request.firstProgress !== undefined) {
      const keep = (): Promise<void> => store.finishRelaxed(request.slot, answer.status, body);
      return { answer, kept: this.#keepLater(keep) };
    }
    await store.finish(request.slot, answer.status, body);
    return { answer, kept: Promise.resolve() };
  }

  /**
   * Keeps the answer once it is on its way. The client of a request that told ahead what it would make need not wait for
   * that: should it be lost, a repeat finds what was made.
   */
  async #keepLater(keep: () => Promise<void>): Promise<void> {
    await new Promise((resolve) => setImmediate(resolve));
    try {
      await keep();
    } catch (error) {
      this.#options.log.warn({ op: "idempotency", outcome: "row left open", err: error });
    }
  }

  /**
   * A refusal is kept like any answer. A failure that may pass frees the key, so that a retry runs, unless something
   * has been started: then the row stays open and a repeat picks it up.
   */
  async #settleFailure(request: KeyedRequest, error: unknown, started: boolean): Promise<void> {
    const { store, log } = this.#options;
    try {
      if (error instanceof CodedError && !error.retryable && error.status < 499) {
        const kept: ErrorEnvelope = error.toEnvelope("");
        await store.finish(request.slot, error.status, JSON.stringify(kept));
      } else if (!started) await store.release(request.slot);
    } catch (storeError) {
      log.warn({ op: "idempotency", outcome: "row left open", err: storeError });
    }
  }

  async #replay(
    request: KeyedRequest,
    row: IdempotencyRow,
    status: number,
  ): Promise<KeptAnswer & { replayed: boolean }> {
    if (row.body !== null) {
      if (status >= 400)
        throw CodedError.fromEnvelope(
          JSON.parse(row.body),
          "conflict",
          "the first request with this key failed",
        );
      return { status, body: row.body, replayed: true };
    }
    if (request.recover === undefined) {
      throw new CodedError(
        "conflict",
        `the request with Idempotency-Key ${request.slot.key} has been carried out, but its answer was too large to keep; it is not run again`,
      );
    }
    return { ...(await request.recover()), replayed: true };
  }

  #isDead(row: IdempotencyRow): boolean {
    const { owner, shared, clock } = this.#options;
    if (row.owner === owner || !shared) return true; // ours, but not running: it broke off
    return clock.now() - row.heartbeat_at > DEAD_AFTER_MS;
  }

  async #wait(first: Promise<unknown>, until: number, request: KeyedRequest): Promise<void> {
    const { clock } = this.#options;
    await new Promise<void>((resolve, reject) => {
      const timer = setTimeout(
        () => settle(() => reject(inProgress(request))),
        Math.max(0, until - clock.monotonic()),
      );
      const onAbort = (): void =>
        settle(() =>
          reject(
            new CodedError(
              "client_closed_request",
              "the client left while it waited for the first request with its key",
            ),
          ),
        );
      const settle = (then: () => void): void => {
        clearTimeout(timer);
        request.signal.removeEventListener("abort", onAbort);
        then();
      };
      request.signal.addEventListener("abort", onAbort, { once: true });
      first.then(
        () => settle(resolve),
        () => settle(resolve),
      );
    });
  }

  #beat(): void {
    if (!this.#options.shared || this.#cancelHeartbeat !== undefined) return;
    const { store, owner, clock, log } = this.#options;
    const next = (): void => {
      this.#cancelHeartbeat = clock.after(HEARTBEAT_MS, () => {
        store
          .heartbeat(owner, clock.now())
          .catch((error: unknown) =>
            log.warn({ op: "idempotency.heartbeat", outcome: "failed", err: error }),
          );
        next();
      });
    };
    next();
  }
}

function inProgress(request: KeyedRequest): CodedError {
  return new CodedError(
    "idempotency_in_progress",
    `the first request with Idempotency-Key ${request.slot.key} is still under way; send the same again to get its answer`,
  );
}
