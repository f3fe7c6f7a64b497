import { type ChildProcess, spawn } from "node:child_process";
import { closeSync, openSync, readFileSync } from "node:fs";
import { eventually } from "./eventually.ts";
import { repositoryRoot } from "./repository.ts";

export interface ProgramOptions {
  argv: readonly [string, ...string[]];
  env: Record<string, string>;
  /** Standard output and error are appended to this file. No pipe: the program must outlive whoever started it. */
  logPath: string;
  /** Default 60,000. */
  readyTimeoutMs?: number;
}

/** One of our long-running programs, started and ready. */
export class Program {
  readonly pid: number;
  /** What its ready line said. */
  readonly ready: Record<string, unknown>;
  readonly ended: Promise<string>;
  readonly #child: ChildProcess;

  private constructor(child: ChildProcess, ended: Promise<string>, ready: Record<string, unknown>) {
    this.#child = child;
    this.pid = child.pid ?? 0;
    this.ended = ended;
    this.ready = ready;
  }

  /** Starts it and waits for its ready line. @throws Error with the end of its log when it ends or takes too long */
  static async start({ argv, env, logPath, readyTimeoutMs = 60_000 }: ProgramOptions): Promise<Program> {
    const log = openSync(logPath, "a", 0o600);
    const before = readFileSync(logPath, "utf8").length;
    // A process group of its own: ^C in the terminal of a test run is for the test run, which then ends this in order.
    const child = spawn(argv[0], argv.slice(1), {
      env: { ...inherited(), ...env },
      cwd: repositoryRoot,
      detached: true,
      stdio: ["ignore", log, log],
    });
    closeSync(log);
    child.unref();
    let ending: string | undefined;
    const ended = new Promise<string>((resolve) => {
      child.once("error", (error) => resolve((ending = `could not be started: ${error.message}`)));
      child.once("exit", (code, signal) =>
        resolve((ending = signal === null ? `exited with ${code}` : `was ended by ${signal}`)),
      );
    });
    const said = (): string => readFileSync(logPath, "utf8").slice(before);
    try {
      const ready = await eventually(
        `the ready line of ${argv.at(-1)}`,
        () => readyLine(said()) ?? ending,
        readyTimeoutMs,
      );
      if (typeof ready === "string") throw new Error(`${argv.at(-1)} ${ready} before it was ready`);
      return new Program(child, ended, ready);
    } catch (error) {
      child.kill("SIGKILL");
      throw new Error(`${String(error)}; its log ends with:\n${said().slice(-3000)}`, { cause: error });
    }
  }

  /** Sends a signal and waits until the process is gone. */
  async kill(signal: NodeJS.Signals): Promise<string> {
    this.#child.ref(); // else a process that does nothing but wait for it would end here
    this.#child.kill(signal);
    return this.ended;
  }
}

/** The environment less what would steer the programs: a test says itself what they see. */
function inherited(): Record<string, string> {
  return Object.fromEntries(
    Object.entries(process.env).filter(
      (entry): entry is [string, string] =>
        entry[1] !== undefined && !/^(TORPOR_|VITEST|NODE_OPTIONS$)/.test(entry[0]),
    ),
  );
}

function readyLine(text: string): Record<string, unknown> | undefined {
  const line = text.split("\n").find((candidate) => candidate.startsWith('{"ready":true'));
  return line === undefined ? undefined : (JSON.parse(line) as Record<string, unknown>);
}
