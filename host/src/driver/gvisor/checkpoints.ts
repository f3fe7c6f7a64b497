import { closeSync, constants, existsSync, openSync, readdirSync, rmSync } from "node:fs";
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { run } from "@torpor/base";
import { PrimedCommand } from "./primed-command.ts";

const TIMEOUT_MS = 120_000;
/** After one was used; whoever used it has its answer by then. */
const REPLENISH_AFTER_MS = 1_000;
/** Names in the folder of one that waits. */
const [GATE, STATE, IMAGE] = ["gate", "state", "image"];

/** Whose state is to be written where. */
export interface CheckpointOf {
  /** The machine's runtime state directory, in which it is alone. */
  stateDir: string;
  imageDir: string;
  signal: AbortSignal | undefined;
}

interface Spare {
  /** Where it looks for its machine and for where to write it. */
  directory: string;
  command: PrimedCommand;
}

/**
 * Runs `runsc checkpoint`. One can be kept started ahead, for whichever machine is next: it names its machine by where it
 * finds it. It ends with this process, however that ends.
 */
export class Checkpoints {
  readonly #directory: string;
  readonly #runscPath: string;
  readonly #flags: readonly string[];
  #keeps = false;
  #made = 0;
  #spare: Promise<Spare> | undefined;
  #replenishing: NodeJS.Timeout | undefined;

  /**
   * @param directory holds what those that wait need; emptied here
   * @param flags of runsc, without those that say where it keeps its state and its log
   */
  constructor(directory: string, runscPath: string, flags: readonly string[]) {
    this.#directory = directory;
    this.#runscPath = runscPath;
    this.#flags = flags;
    releaseOrphans(directory);
    rmSync(directory, { recursive: true, force: true });
  }

  /** Keeps one started ahead from now on, until {@link Checkpoints.close}. */
  keepSpare(): void {
    this.#keeps = true;
    this.#replenishing = undefined;
    this.#spare ??= this.#prime();
    this.#spare.catch(() => {}); // looked at when it is taken
  }

  /** Ends the one that waits. */
  async close(): Promise<void> {
    this.#keeps = false;
    clearTimeout(this.#replenishing);
    const spare = await this.#take();
    await spare?.command.cancel();
    await rm(this.#directory, { recursive: true, force: true });
  }

  /** Writes a machine, which goes on. @throws ProcessError with what the runtime said */
  async write({ stateDir, imageDir, signal }: CheckpointOf): Promise<void> {
    const spare = await this.#take();
    try {
      if (spare === undefined || spare.command.isSpent)
        await run(this.#argv([], stateDir, imageDir), {
          timeoutMs: TIMEOUT_MS,
          ...(signal === undefined ? {} : { signal }),
        });
      else
        await spare.command.run(
          { [join(spare.directory, STATE)]: stateDir, [join(spare.directory, IMAGE)]: imageDir },
          { timeoutMs: TIMEOUT_MS, signal },
        );
    } finally {
      await spare?.command.cancel(); // one that could not be used would wait for ever
      if (spare !== undefined) await rm(spare.directory, { recursive: true, force: true });
      if (this.#keeps) this.#replenishing ??= setTimeout(() => this.keepSpare(), REPLENISH_AFTER_MS).unref();
    }
  }

  async #take(): Promise<Spare | undefined> {
    const spare = this.#spare;
    this.#spare = undefined;
    return await spare?.catch(() => undefined);
  }

  async #prime(): Promise<Spare> {
    const directory = join(this.#directory, String((this.#made += 1)));
    await mkdir(directory, { recursive: true, mode: 0o700 });
    const argv = (flags: string[]): [string, ...string[]] => [
      "setpriv",
      "--pdeathsig",
      "KILL",
      ...this.#argv(flags, join(directory, STATE), join(directory, IMAGE)),
    ];
    const command = await PrimedCommand.start(join(directory, GATE), (flags, signal, timeoutMs) =>
      run(argv(flags), { signal, timeoutMs }),
    );
    return { directory, command };
  }

  #argv(flags: readonly string[], stateDir: string, imageDir: string): [string, ...string[]] {
    return [
      this.#runscPath,
      `--root=${stateDir}`,
      ...this.#flags,
      ...flags,
      "checkpoint",
      // Always: the plain form ends the sandbox even when it fails.
      "-leave-running",
      "-compression=none",
      "-image-path",
      imageDir,
      MACHINE_PREFIX,
    ];
  }
}

/**
 * One that an earlier process had just begun to start when it was killed has not been told yet to end with it: it waits, is let
 * go on, and finds nothing to do.
 */
function releaseOrphans(directory: string): void {
  const names = existsSync(directory) ? readdirSync(directory) : [];
  for (const gate of names.map((name) => join(directory, name, GATE)))
    if (existsSync(gate)) closeSync(openSync(gate, constants.O_RDONLY | constants.O_NONBLOCK));
}

/** Every machine's id in the runtime begins so; it takes the beginning of an id for the id of the only one that has it. */
export const MACHINE_PREFIX = "m";
