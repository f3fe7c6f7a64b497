import { type ChildProcess, spawn, type SpawnOptions } from "node:child_process";

export interface RunOptions {
  cwd?: string;
  env?: NodeJS.ProcessEnv;
  /** Written to standard input, which is then closed. */
  input?: string | Buffer;
  /** KILL after this long. Default 60,000. */
  timeoutMs?: number;
  signal?: AbortSignal;
  /** Output kept per stream, bytes. Default 4 MiB; the rest is dropped. */
  maxOutputBytes?: number;
  uid?: number;
  gid?: number;
  /** Both outputs go to this open file instead of being collected: a daemon left behind keeps it, not our pipe. */
  outputFd?: number;
}

export interface RunResult {
  stdout: string;
  stderr: string;
}

/** A child process that did not exit with 0. Carries what a person needs to see why. */
export class ProcessError extends Error {
  readonly argv: readonly string[];
  readonly exitCode: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stderr: string;

  constructor(
    argv: readonly string[],
    exitCode: number | null,
    signal: NodeJS.Signals | null,
    stderr: string,
    why?: string,
  ) {
    const ending = why ?? (signal === null ? `exited with ${exitCode}` : `was ended by ${signal}`);
    const lastLines = stderr.trim().split("\n").slice(-5).join("\n");
    super(`${argv.join(" ")} ${ending}${lastLines === "" ? "" : `: ${lastLines}`}`);
    this.name = "ProcessError";
    this.argv = argv;
    this.exitCode = exitCode;
    this.signal = signal;
    this.stderr = stderr;
  }
}

class BoundedOutput {
  #chunks: Buffer[] = [];
  #bytes = 0;
  readonly #limitBytes: number;

  constructor(limitBytes: number) {
    this.#limitBytes = limitBytes;
  }

  push(chunk: Buffer): void {
    const room = this.#limitBytes - this.#bytes;
    if (room <= 0) return;
    const kept = chunk.length > room ? chunk.subarray(0, room) : chunk;
    this.#chunks.push(kept);
    this.#bytes += kept.length;
  }

  toString(): string {
    return Buffer.concat(this.#chunks).toString("utf8");
  }
}

/**
 * Runs a program by argv (never a shell) and waits for it.
 *
 * @throws ProcessError when it does not exit with 0, cannot be started, takes longer than `timeoutMs` or is aborted.
 */
export async function run(
  argv: readonly [string, ...string[]],
  options: RunOptions = {},
): Promise<RunResult> {
  const { input, timeoutMs = 60_000, signal, maxOutputBytes = 4 * 1024 * 1024 } = options;
  if (signal?.aborted) throw new ProcessError(argv, null, null, "", "was not started: aborted");
  const output = options.outputFd ?? "pipe";
  const spawnOptions: SpawnOptions = { stdio: [input === undefined ? "ignore" : "pipe", output, output] };
  if (options.cwd !== undefined) spawnOptions.cwd = options.cwd;
  if (options.env !== undefined) spawnOptions.env = options.env;
  if (options.uid !== undefined) spawnOptions.uid = options.uid;
  if (options.gid !== undefined) spawnOptions.gid = options.gid;
  const child: ChildProcess = spawn(argv[0], argv.slice(1), spawnOptions);
  const stdout = new BoundedOutput(maxOutputBytes);
  const stderr = new BoundedOutput(maxOutputBytes);
  child.stdout?.on("data", (chunk: Buffer) => stdout.push(chunk));
  child.stderr?.on("data", (chunk: Buffer) => stderr.push(chunk));
  child.stdin?.on("error", () => {}); // a child that does not read its input is judged by its exit
  child.stdin?.end(input);
  let why: string | undefined;
  const kill = (reason: string): void => {
    why = reason;
    child.kill("SIGKILL");
  };
  const timer = setTimeout(() => kill(`was killed after ${timeoutMs} ms`), timeoutMs);
  const onAbort = (): void => kill("was aborted");
  signal?.addEventListener("abort", onAbort, { once: true });
  try {
    const [exitCode, endSignal] = await new Promise<[number | null, NodeJS.Signals | null]>(
      (resolve, reject) => {
        child.once("error", (error) =>
          reject(new ProcessError(argv, null, null, "", `could not be started: ${error.message}`)),
        );
        child.once("close", (code, killedBy) => resolve([code, killedBy]));
      },
    );
    if (exitCode !== 0 || why !== undefined)
      throw new ProcessError(argv, exitCode, endSignal, stderr.toString(), why);
    return { stdout: stdout.toString(), stderr: stderr.toString() };
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", onAbort);
  }
}
