import type { Clock, Log } from "@torpor/base";
import type { CodedError } from "@torpor/protocol";
import type { KeyRecord, KeyStore } from "../store/key-store.ts";
import { keyRefusal } from "./key-refusal.ts";

/** How often the keys of requests under way are looked at. */
const LOOK_EVERY_MS = 500;
/** Keys asked for in one statement. */
const KEYS_AT_ONCE = 500;

interface Held {
  readonly key: KeyRecord;
  /** Monotonic milliseconds. */
  readonly since: number;
  readonly onEnd: (refusal: CodedError) => void;
}

/**
 * Ends what is still under way when its API key is revoked or expires: event streams, commands, terminals, transfers.
 * That takes {@link LOOK_EVERY_MS} to twice as long, on every server that shares the store. Requests younger than that
 * are let be: they were authenticated just now.
 */
export class KeyWatch {
  readonly #keys: KeyStore;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #held = new Set<Held>();
  #cancel: (() => void) | undefined;
  #closed = false;

  constructor(keys: KeyStore, clock: Clock, log: Log) {
    this.#keys = keys;
    this.#clock = clock;
    this.#log = log;
  }

  /** Has `onEnd` told, once, when the key is no longer good. The answer lets go. */
  hold(key: KeyRecord, onEnd: (refusal: CodedError) => void): () => void {
    const held = { key, since: this.#clock.monotonic(), onEnd };
    this.#held.add(held);
    if (!this.#closed) this.#cancel ??= this.#clock.after(LOOK_EVERY_MS, () => void this.#turn());
    return () => void this.#held.delete(held);
  }

  close(): void {
    this.#closed = true;
    this.#cancel?.();
  }

  async #turn(): Promise<void> {
    try {
      await this.#look();
    } catch (error) {
      // A store that cannot be read says nothing about a key: what is under way goes on, and the next look decides.
      this.#log.warn({ op: "key.watch", outcome: "store unreadable", err: error });
    }
    this.#cancel =
      this.#closed || this.#held.size === 0
        ? undefined
        : this.#clock.after(LOOK_EVERY_MS, () => void this.#turn());
  }

  async #look(): Promise<void> {
    const before = this.#clock.monotonic() - LOOK_EVERY_MS;
    const old = [...this.#held].filter(({ since }) => since <= before);
    const keys = [...new Map(old.map(({ key }) => [key.id, key])).values()];
    const ended = new Map<string, CodedError>();
    for (let from = 0; from < keys.length; from += KEYS_AT_ONCE) {
      const now = await this.#keys.reload(keys.slice(from, from + KEYS_AT_ONCE));
      for (const key of now) {
        const refusal = keyRefusal(key, this.#clock.now());
        if (refusal !== undefined) ended.set(key.id, refusal);
      }
    }
    for (const held of old) {
      const refusal = ended.get(held.key.id);
      if (refusal !== undefined && this.#held.delete(held)) held.onEnd(refusal);
    }
  }
}
