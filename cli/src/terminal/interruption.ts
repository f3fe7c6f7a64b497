import { constants } from "node:os";
import { EXIT, ExitWith } from "../failure.ts";

const SIGNALS = ["SIGINT", "SIGTERM", "SIGHUP"] as const;

/**
 * Turns ^C (and TERM, HUP) into an abort, so that what was begun is undone before the process ends. A second one ends
 * the process at once.
 */
export class Interruption implements Disposable {
  readonly #controller = new AbortController();
  #received: NodeJS.Signals | undefined;
  readonly #listener = (signal: NodeJS.Signals): void => {
    if (this.#received !== undefined) process.exit(EXIT.signalBase + constants.signals[signal]);
    this.#received = signal;
    this.#controller.abort(new ExitWith(EXIT.signalBase + constants.signals[signal]));
  };

  constructor() {
    for (const signal of SIGNALS) process.on(signal, this.#listener);
  }

  /** Aborts with `ExitWith(128 + signal)`. */
  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  [Symbol.dispose](): void {
    for (const signal of SIGNALS) process.off(signal, this.#listener);
  }
}
