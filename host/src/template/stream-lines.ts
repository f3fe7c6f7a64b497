import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { ProcessError } from "@torpor/base";

export interface StreamLinesOptions {
  env: NodeJS.ProcessEnv;
  /** Each line of standard output and standard error, without its end. */
  onLine: (line: string) => void;
  timeoutMs: number;
  /** A process whose mounts it starts from; default: those of this process. */
  mountsOf?: number;
  signal?: AbortSignal;
}

const LINE_CHARACTERS_MAX = 64 * 1024;
const LINES_KEPT = 60;

/**
 * Runs a long build step so that it cannot outlive this process nor leave anything behind: in its own mount and pid
 * namespaces, killed by the kernel when this process dies. Its mounts and children vanish with it.
 *
 * @param namespaces further `unshare` arguments, such as `--root=...`
 * @throws ProcessError carrying the last lines of output
 */
export async function streamLinesContained(
  namespaces: readonly string[],
  argv: readonly [string, ...string[]],
  options: StreamLinesOptions,
): Promise<void> {
  if (options.signal?.aborted) throw new ProcessError(argv, null, null, "", "was not started: aborted");
  const contained = [
    "--pdeathsig",
    "KILL",
    ...(options.mountsOf === undefined ? [] : ["nsenter", `--mount=/proc/${options.mountsOf}/ns/mnt`, "--"]),
    "unshare",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    ...namespaces,
    "--",
    ...argv,
  ];
  const child = spawn("setpriv", contained, { env: options.env, stdio: ["ignore", "pipe", "pipe"] });
  const kept: string[] = [];
  const take = (line: string): void => {
    kept.push(line.slice(0, 500));
    if (kept.length > LINES_KEPT) kept.shift();
    options.onLine(line);
  };
  for (const stream of [child.stdout, child.stderr]) {
    let rest = "";
    stream.setEncoding("utf8");
    stream.on("data", (text: string) => {
      const lines = (rest + text).split("\n");
      rest = (lines.pop() ?? "").slice(-LINE_CHARACTERS_MAX);
      for (const line of lines) take(line);
    });
    stream.on("end", () => {
      if (rest !== "") take(rest);
    });
  }
  let why: string | undefined;
  const kill = (reason: string): void => {
    why = reason;
    // The kernel ends all others in the pid namespace before its first process is gone, and unshare waits for that one:
    // killed so, nothing is left running when the child's end is seen. Before the namespace exists, unshare is all there is.
    const first = firstChild(child.pid);
    try {
      if (first !== undefined) process.kill(first, "SIGKILL");
    } catch {
      // it ended by itself a moment ago, and unshare with it
    }
    if (first === undefined) child.kill("SIGKILL");
  };
  const timer = setTimeout(() => kill(`was killed after ${options.timeoutMs} ms`), options.timeoutMs);
  const onAbort = (): void => kill("was aborted");
  options.signal?.addEventListener("abort", onAbort, { once: true });
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
      throw new ProcessError(argv, exitCode, endSignal, kept.join("\n"), why);
  } finally {
    clearTimeout(timer);
    options.signal?.removeEventListener("abort", onAbort);
  }
}

function firstChild(pid: number | undefined): number | undefined {
  if (pid === undefined) return undefined;
  try {
    const [first] = readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8").split(" ");
    return first === undefined || first === "" ? undefined : Number(first);
  } catch {
    return undefined; // it has ended, or the kernel does not list children
  }
}
