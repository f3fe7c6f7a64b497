import type { Clock } from "@torpor/base";
import type { BuildLog } from "./build-log.ts";
import { BuildFailed } from "./build-failed.ts";
import { type BuildSandbox, stopped } from "./build-sandbox.ts";
import type { BuildSpec } from "./build-spec.ts";
import type { BuildContext } from "./build-steps.ts";

export interface ReadyParts {
  buildLog: BuildLog;
  clock: Clock;
  signal: AbortSignal;
}

/** A template that is not ready by then is not built, seconds: E2B's own bound. */
const READY_WITHIN_SECONDS = 300;
const ASK_EVERY_MS = 500;
/** What E2B waits for where a start command has no ready command. */
const DEFAULT_READY_COMMAND = "sleep 20";

/** Starts the template's start command, which stays in the image, and waits until its ready command exits with 0. @throws BuildFailed */
export async function untilReady(
  sandbox: BuildSandbox,
  { startCmd, readyCmd }: Pick<BuildSpec, "startCmd" | "readyCmd">,
  { user, workdir, env }: BuildContext,
  parts: ReadyParts,
): Promise<void> {
  const { buildLog, clock, signal } = parts;
  const say = (message: string): void => buildLog.add("finalize", "info", `[finalize] ${message}`);
  const context = { user, cwd: workdir, env };
  const hasStart = startCmd != null && startCmd.trim() !== "";
  const readyCommand =
    readyCmd != null && readyCmd.trim() !== "" ? readyCmd : hasStart ? DEFAULT_READY_COMMAND : null;
  const started = hasStart ? await start(sandbox, startCmd, context, say) : undefined;
  try {
    if (readyCommand === null) return;
    say(`waiting until ready: ${readyCommand}`);
    const deadline = clock.monotonic() + READY_WITHIN_SECONDS * 1_000;
    const startFailed = started?.failed.then((why): never => {
      throw new BuildFailed(`start command failed: ${why}`);
    });
    startFailed?.catch(() => {}); // looked at with the next answer of the ready command
    for (;;) {
      const left = (deadline - clock.monotonic()) / 1_000;
      if (left <= 0)
        throw new BuildFailed(
          `the template was not ready within ${READY_WITHIN_SECONDS} s: '${readyCommand}' did not exit with 0`,
        );
      const asked = sandbox.run({ ...context, command: readyCommand, timeoutSeconds: left });
      asked.catch(() => {}); // looked at below, unless the start command fails first
      const { failure } = await (startFailed === undefined ? asked : Promise.race([asked, startFailed]));
      if (failure === null) break;
      await pause(clock, signal);
    }
    say("ready");
  } finally {
    started?.leave();
  }
}

async function start(
  sandbox: BuildSandbox,
  command: string,
  context: { user: string; cwd: string; env: Record<string, string> },
  say: (message: string) => void,
): Promise<{ failed: Promise<string>; leave: () => void }> {
  say(`starting: ${command}`);
  try {
    return await sandbox.startAndLeave({ ...context, command }, (stream, line) =>
      say(`[${stream}]: ${line}`),
    );
  } catch (error) {
    if (!(error instanceof BuildFailed)) throw error;
    throw new BuildFailed(`failed to run start command '${command}': ${error.message}`, { cause: error });
  }
}

function pause(clock: Clock, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const onAbort = (): void => {
      cancel();
      reject(stopped(signal));
    };
    const cancel = clock.after(ASK_EVERY_MS, () => {
      signal.removeEventListener("abort", onAbort);
      resolve();
    });
    if (signal.aborted) onAbort();
    else signal.addEventListener("abort", onAbort, { once: true });
  });
}
