import { CodedError } from "@torpor/protocol";
import type { Invocation } from "../context.ts";
import { formatDuration } from "../output/quantities.ts";
import { instanceCommand } from "./instance-command.ts";
import { type LiveStatus, readStatus } from "./instance-status.ts";
import { STOP_KEEPING_SANDBOXES } from "./stop-signal.ts";
import type { ProgramEvent } from "./supervised-program.ts";
import { startInstance } from "./supervisor.ts";

/** What an instance is started with. */
export interface StartWith {
  listen: string;
  localTls: boolean;
  /** With the settings in it. */
  env: NodeJS.ProcessEnv;
}

/** What the detached supervisor tells the command that started it. */
export type DetachMessage = { ready: true } | { ready: false; code: string; message: string };

/**
 * The supervisor: starts an instance and keeps it until a signal ends it. INT, TERM and HUP end the sandboxes too.
 * Tells the command that started it, if one waits on the other end of an IPC channel.
 */
export async function superviseUntilTold(
  invocation: Invocation,
  start: StartWith,
  describe: (status: LiveStatus) => string,
): Promise<void> {
  const { paths, context } = invocation;
  const tell = (message: DetachMessage): void => {
    process.send?.(message);
  };
  let requested: { drain: boolean } | undefined;
  let wake = (): void => {};
  const told = new Promise<void>((resolve) => (wake = resolve));
  const onSignal = (drain: boolean, signal: string): void => {
    if (requested !== undefined) return; // a second ^C changes nothing: stopping is bounded by its own limits
    requested = { drain };
    logLine(invocation, `${signal}: stopping${drain ? ", sandboxes included" : ", the sandboxes stay"}`);
    wake();
  };
  process.on("SIGINT", () => onSignal(true, "SIGINT"));
  process.on("SIGTERM", () => onSignal(true, "SIGTERM"));
  process.on("SIGHUP", () => onSignal(true, "SIGHUP"));
  process.on(STOP_KEEPING_SANDBOXES, () => onSignal(false, STOP_KEEPING_SANDBOXES));
  process.on("disconnect", () => {}); // the starting command left: that is its job done
  try {
    const instance = await startInstance({
      paths,
      installation: context.installation,
      ...start,
      onEvent: (event) => logLine(invocation, describeEvent(event)),
    });
    tell({ ready: true });
    if (process.send === undefined) {
      const status = await readStatus(paths, context.installation);
      invocation.answer(
        status,
        () =>
          `${describe(status)}\nlogs     ${paths.logsDir}\nstop     ^C, or ${instanceCommand(paths, "sudo torpor down")}`,
      );
    }
    await told;
    await instance.stop(requested ?? { drain: true });
    logLine(invocation, "stopped");
  } catch (error) {
    const coded =
      error instanceof CodedError
        ? error
        : new CodedError("internal", error instanceof Error ? error.message : String(error));
    tell({ ready: false, code: coded.code, message: coded.message });
    throw coded;
  }
}

function logLine(invocation: Invocation, message: string): void {
  const { stderr } = invocation.context;
  stderr.write(`${invocation.errorStyle.dim(new Date().toISOString())} ${message}\n`);
}

function describeEvent(event: ProgramEvent | { type: "note"; message: string }): string {
  switch (event.type) {
    case "note":
      return event.message;
    case "started":
      return `${event.name}: started, pid ${event.pid}`;
    case "ready":
      return `${event.name}: serves after ${formatDuration(event.afterMs)}`;
    case "crashed":
      return `${event.name}: ${event.ending}; starting it again ${event.restartInMs === 0 ? "at once" : `in ${formatDuration(event.restartInMs)}`}`;
    case "stopped":
      return `${event.name}: stopped (${event.how})`;
  }
}
