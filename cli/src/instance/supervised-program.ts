import { type ChildProcess, spawn } from "node:child_process";
import { closeSync, openSync, rmSync } from "node:fs";
import { CodedError } from "@torpor/protocol";
import type { ProgramArgv } from "./installation.ts";
import { logTail, readableLine } from "./log-tail.ts";
import { endProcess, type ProcessIdentity, startTimeOf } from "./process-identity.ts";
import { RestartBackoff } from "./restart-backoff.ts";
import { readRunFile, type RunFile } from "./run-file.ts";

export interface ProgramOptions {
  name: string;
  argv: ProgramArgv;
  env: NodeJS.ProcessEnv;
  logPath: string;
  /** The program writes this when it serves. */
  runFilePath: string;
  readyTimeoutMs: number;
  /** Asks the program whether it serves; rejects while it does not. */
  probe: (runFile: RunFile) => Promise<unknown>;
  onEvent: (event: ProgramEvent) => void;
}

export type ProgramEvent =
  | { type: "started"; name: string; pid: number }
  | { type: "ready"; name: string; pid: number; afterMs: number }
  | { type: "crashed"; name: string; ending: string; restartInMs: number }
  | { type: "stopped"; name: string; how: string };

/** What this process knows of the program; each variant owns what it names. */
type Phase =
  | { is: "idle" }
  | { is: "running"; child: ChildProcess; ended: Promise<string> }
  | { is: "waiting"; timer: NodeJS.Timeout }
  | { is: "stopped" };

/**
 * Keeps one program running: started again when it ends by itself, with growing pauses, until `stop`.
 *
 * It is "ready" when its run file names the child's pid and it answers the probe: not a line on its standard output,
 * because the program must be able to outlive a killed supervisor, and a broken pipe would end it.
 */
export class SupervisedProgram {
  readonly #options: ProgramOptions;
  readonly #backoff = new RestartBackoff();
  #phase: Phase = { is: "idle" };

  constructor(options: ProgramOptions) {
    this.#options = options;
  }

  /**
   * Starts it and waits until it serves.
   *
   * @throws CodedError `host_unavailable` with the end of its log when it ends before, or takes too long; it is then
   * not started again.
   */
  async start(): Promise<RunFile> {
    const { name, logPath, readyTimeoutMs } = this.#options;
    const { child, ended } = this.#spawn();
    const ready = await this.#ready(child, ended, readyTimeoutMs);
    if ("runFile" in ready) {
      const servesSince = performance.now();
      void this.#watch(ended, () => servesSince);
      return ready.runFile;
    }
    await this.stop(2_000);
    const tail = logTail(logPath, 8).map(readableLine).join("\n  ");
    throw new CodedError(
      "host_unavailable",
      `the ${name} did not start: ${ready.why}. Its log, ${logPath}, ends with:\n  ${tail === "" ? "(nothing)" : tail}\nRun 'torpor doctor' to check this machine.`,
      { details: { program: name, log: logPath } },
    );
  }

  /** Ends it (TERM, KILL after `graceMs`) and does not start it again. Idempotent. */
  async stop(graceMs: number): Promise<void> {
    const phase = this.#phase;
    this.#phase = { is: "stopped" };
    if (phase.is === "waiting") clearTimeout(phase.timer);
    if (phase.is === "running") {
      const how = await endChild(phase.child, phase.ended, graceMs);
      this.#options.onEvent({ type: "stopped", name: this.#options.name, how });
    }
    rmSync(this.#options.runFilePath, { force: true });
  }

  #spawn(): { child: ChildProcess; ended: Promise<string> } {
    const { name, argv, env, logPath, runFilePath, onEvent } = this.#options;
    rmSync(runFilePath, { force: true }); // of an earlier run: pids do come round again
    const log = openSync(logPath, "a", 0o640);
    try {
      // A session of its own: ^C in the terminal of `torpor up` reaches the supervisor alone, which then stops
      // the programs in order.
      const child = spawn(argv[0], argv.slice(1), {
        env,
        cwd: "/",
        detached: true,
        stdio: ["ignore", log, log],
      });
      const ended = new Promise<string>((resolve) => {
        child.once("error", (error) => resolve(`could not be started: ${error.message}`));
        child.once("exit", (code, signal) =>
          resolve(signal === null ? `exited with ${code}` : `was ended by ${signal}`),
        );
      });
      this.#phase = { is: "running", child, ended };
      if (child.pid !== undefined) onEvent({ type: "started", name, pid: child.pid });
      return { child, ended };
    } finally {
      closeSync(log);
    }
  }

  async #ready(
    child: ChildProcess,
    ended: Promise<string>,
    timeoutMs: number,
  ): Promise<{ runFile: RunFile } | { why: string }> {
    const { name, runFilePath, probe, onEvent } = this.#options;
    const startedAt = performance.now();
    let ending: string | undefined;
    let lastProblem = "it has not written its run file";
    void ended.then((how) => (ending = how));
    for (;;) {
      const runFile = readRunFile(runFilePath);
      if (runFile !== null && runFile.pid === child.pid) {
        try {
          await probe(runFile);
          onEvent({
            type: "ready",
            name,
            pid: runFile.pid,
            afterMs: Math.round(performance.now() - startedAt),
          });
          return { runFile };
        } catch (error) {
          lastProblem = error instanceof Error ? error.message : String(error);
        }
      }
      if (ending !== undefined) return { why: `it ${ending}` };
      if (this.#phase.is === "stopped") return { why: "it was told to stop" };
      if (performance.now() - startedAt > timeoutMs)
        return { why: `it was not ready after ${timeoutMs / 1000} s (${lastProblem})` };
      await new Promise((resolve) => setTimeout(resolve, 15));
    }
  }

  /** Waits for the end of a program that served and, unless it was asked for, starts it again after a pause. */
  async #watch(ended: Promise<string>, servesSince: () => number | undefined): Promise<void> {
    const ending = await ended;
    if (this.#phase.is !== "running") return;
    const since = servesSince();
    const restartInMs = this.#backoff.next(since === undefined ? 0 : performance.now() - since);
    const timer = setTimeout(() => this.#restart(), restartInMs);
    this.#phase = { is: "waiting", timer };
    this.#options.onEvent({ type: "crashed", name: this.#options.name, ending, restartInMs });
  }

  #restart(): void {
    if (this.#phase.is !== "waiting") return;
    let servesSince: number | undefined;
    const { child, ended } = this.#spawn();
    void this.#watch(ended, () => servesSince);
    void this.#ready(child, ended, this.#options.readyTimeoutMs).then((ready) => {
      // Alive yet not serving: KILL makes the crash that the backoff counts.
      if ("runFile" in ready) servesSince = performance.now();
      else if (this.#phase.is === "running" && this.#phase.child === child) child.kill("SIGKILL");
    });
  }
}

async function endChild(child: ChildProcess, ended: Promise<string>, graceMs: number): Promise<string> {
  const startTime = child.pid === undefined ? null : startTimeOf(child.pid);
  if (child.pid !== undefined && startTime !== null) {
    const identity: ProcessIdentity = { pid: child.pid, start_time: startTime };
    if ((await endProcess(identity, graceMs)) === "killed") return `was killed after ${graceMs} ms`;
  }
  return ended;
}
