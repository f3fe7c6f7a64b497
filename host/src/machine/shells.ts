import type { Clock } from "@torpor/base";
import type { Driver, MachineHandle } from "../driver/driver.ts";
import { Demand } from "./demand.ts";

export interface ShellsOptions {
  driver: Pick<Driver, "adopt" | "pause" | "resume">;
  clock: Clock;
  /** Kept whatever was asked for. 0: none is kept. */
  least: number;
  /** How far back demand is looked at. */
  demandMs: number;
  /** Starts one. */
  start: (signal: AbortSignal) => Promise<MachineHandle>;
  /** Told of one that is no use, and is nobody's any more. `error`: what could not be done with it, if its process is there. */
  discard: (shell: MachineHandle, error?: unknown) => void;
  /** Told of one that is needed no more. */
  end: (shell: MachineHandle) => void;
  /** Given work in the background; it does not reject. */
  track: (work: Promise<void>) => void;
}

/** One has its restore started ahead, and needs to run no more, after so long. */
const STARTED_MS = 500;
/** Most that wait because they were asked for: as many as a fork restores at once. At some 14 MiB each, 110 MiB. */
const MOST = 8;
/** How long those that are expected to be asked for are made: an image is written meanwhile. */
const EXPECT_MS = 10_000;

/**
 * Runtime processes of one template, started and empty, for whatever image is restored next. As many wait as were asked for
 * lately, within bounds; each is given out once.
 */
export class Shells {
  readonly #options: ShellsOptions;
  readonly #waiting: MachineHandle[] = [];
  /** Of those that wait: the ones that are just being stopped. They cannot be taken. */
  readonly #stopping = new Set<MachineHandle>();
  /** The one that is being started, as long as nobody has taken it. */
  #coming: Promise<MachineHandle> | undefined;
  readonly #demand: Demand;
  #expected = 0;
  #forgetExpected = (): void => {};
  #trimNoMore = (): void => {};

  constructor(options: ShellsOptions) {
    this.#options = options;
    this.#demand = new Demand(options.clock, options.demandMs);
  }

  get waiting(): readonly MachineHandle[] {
    return this.#waiting;
  }

  get target(): number {
    const { least } = this.#options;
    if (least === 0) return 0;
    return Math.max(least, Math.min(MOST, Math.max(this.#demand.count, this.#expected)));
  }

  /** Whether some are about to be asked for. */
  get areExpected(): boolean {
    return this.#expected > 0;
  }

  /** Whether more are about to be asked for than there are: they are to be started at once. */
  get areShort(): boolean {
    return this.#expected > this.#waiting.length;
  }

  /** So many will be asked for in a moment. */
  expect(count: number): void {
    if (this.#options.least === 0) return;
    this.#expected = Math.min(MOST, Math.max(this.#expected, count));
    this.#forgetExpected();
    this.#forgetExpected = this.#options.clock.after(EXPECT_MS, () => {
      this.#expected = 0;
      this.#trim();
    });
  }

  /** Starts one more, which is given to whoever asks meanwhile. @throws why it could not be started */
  async add(signal: AbortSignal): Promise<void> {
    const { clock, start, track } = this.#options;
    const coming = start(signal);
    this.#coming = coming;
    try {
      const shell = await coming;
      if (this.#coming !== coming) return;
      this.#waiting.push(shell);
      clock.after(STARTED_MS, () => track(this.#stop(shell)));
      this.#trim();
    } finally {
      if (this.#coming === coming) this.#coming = undefined;
    }
  }

  /** One that waits, else the one that is being started; undefined when there is neither. The caller's from then on. */
  async take(): Promise<MachineHandle | undefined> {
    if (this.#options.least === 0) return undefined;
    this.#demand.note();
    this.#expected = Math.max(0, this.#expected - 1);
    const shell = this.takeWaiting();
    if (shell !== undefined) return shell;
    const coming = this.#coming;
    this.#coming = undefined;
    return await coming?.catch(() => undefined); // whoever starts it is told
  }

  /** As {@link Shells.take}, for what nobody has asked for: it is no demand. */
  takeWaiting(): MachineHandle | undefined {
    for (;;) {
      const shell = this.#waiting.find((candidate) => !this.#stopping.has(candidate));
      if (shell === undefined) return undefined;
      this.#remove(shell);
      if (resumed(this.#options.driver, shell)) return shell;
      this.#options.discard(shell);
    }
  }

  /** Gives up all that wait. */
  close(): void {
    this.#forgetExpected();
    this.#trimNoMore();
    for (const shell of this.#waiting.splice(0)) this.#options.end(shell);
  }

  #remove(shell: MachineHandle): void {
    this.#waiting.splice(this.#waiting.indexOf(shell), 1);
  }

  /** Stops one until it is taken: the runtime polls, which is 2% of a CPU for as long as it waits. */
  async #stop(shell: MachineHandle): Promise<void> {
    if (!this.#waiting.includes(shell)) return;
    this.#stopping.add(shell);
    try {
      await this.#options.driver.pause(shell);
    } catch (error) {
      if (!this.#waiting.includes(shell)) return; // given up meanwhile
      this.#remove(shell);
      this.#options.discard(shell, error);
    } finally {
      this.#stopping.delete(shell);
    }
  }

  /** Gives up those that nobody wants any more, and again whenever fewer may be wanted. */
  #trim(): void {
    const { clock, end, least } = this.#options;
    this.#trimNoMore();
    for (const shell of this.#waiting.slice(this.target)) {
      this.#remove(shell);
      end(shell);
    }
    const { lapsesInMs } = this.#demand;
    if (this.#waiting.length <= least || lapsesInMs === undefined) return; // what is expected has a clock of its own
    this.#trimNoMore = clock.after(lapsesInMs, () => this.#trim());
  }
}

/** Lets a machine that waits go on. Answers false for one that has died, be it at this moment. */
export function resumed(driver: Pick<Driver, "adopt" | "resume">, handle: MachineHandle): boolean {
  try {
    if (!driver.adopt(handle)) return false;
    driver.resume(handle);
    return true;
  } catch {
    return false;
  }
}
