import type { Clock, Log } from "@torpor/base";
import type { PreviewUrlStore } from "../store/preview-url-store.ts";

/** How often the URLs of open connections are looked at. */
const LOOK_EVERY_MS = 1_000;

/** Ends what is still open when its preview URL is revoked or expires, within two looks. */
export class VisitWatch {
  readonly #store: PreviewUrlStore;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #held = new Set<{ urlId: string; end: () => void }>();
  #cancel: (() => void) | undefined;
  #closed = false;

  constructor(store: PreviewUrlStore, clock: Clock, log: Log) {
    this.#store = store;
    this.#clock = clock;
    this.#log = log;
  }

  /** Has `end` called, once, when the URL no longer lets anybody in. The answer lets go. */
  hold(urlId: string, end: () => void): () => void {
    const held = { urlId, end };
    this.#held.add(held);
    this.#arm();
    return () => void this.#held.delete(held);
  }

  close(): void {
    this.#closed = true;
    this.#cancel?.();
  }

  #arm(): void {
    if (this.#closed || this.#held.size === 0) return;
    this.#cancel ??= this.#clock.after(LOOK_EVERY_MS, () => void this.#look());
  }

  async #look(): Promise<void> {
    const held = [...this.#held];
    try {
      const inForce = await this.#store.inForce(new Set(held.map(({ urlId }) => urlId)), this.#clock.now());
      for (const each of held) if (!inForce.has(each.urlId) && this.#held.delete(each)) each.end();
    } catch (error) {
      // A store that cannot be read says nothing about a URL: what is open stays, and the next look decides.
      this.#log.warn({ op: "preview.watch", outcome: "store unreadable", err: error });
    }
    this.#cancel = undefined;
    this.#arm();
  }
}
