import { spawn } from "node:child_process";
import { closeSync, mkdirSync, openSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Command } from "commander";
import { CodedError } from "@torpor/protocol";
import type { CliContext, Invocation } from "../context.ts";
import { invocationOf } from "../context.ts";
import { UsageError } from "../failure.ts";
import { missingParts } from "../instance/installation.ts";
import { readStatus } from "../instance/instance-status.ts";
import { STOP_KEEPING_SANDBOXES } from "../instance/shut-down.ts";
import type { ProgramEvent } from "../instance/supervised-program.ts";
import { startInstance } from "../instance/supervisor.ts";
import { supervisorOf } from "../instance/supervisor-lock.ts";
import { formatDuration } from "../output/quantities.ts";
import { describeStatus } from "./status.ts";

/** Where the API listens when nothing else is said. */
export const DEFAULT_LISTEN = "127.0.0.1:7070";

/** What the detached supervisor tells the command that started it. */
type DetachMessage = { ready: true } | { ready: false; code: string; message: string };

/** `torpor up`: host and server on this machine, supervised. */
export function registerUp(program: Command, context: CliContext): void {
  program
    .command("up")
    .summary("start Torpor on this machine")
    .description(
      "Starts the host and the server and keeps them running. In the foreground it stays as their supervisor and ^C " +
        "stops everything, sandboxes included; with --detach it returns once the API answers. Needs root.",
    )
    .option("-d, --detach", "go on in the background; returns when the API answers")
    .option(
      "--listen <address>",
      "address and port of the API (0 picks a free port)",
      context.env["TORPOR_LISTEN"] || DEFAULT_LISTEN,
    )
    .action(async (options: { detach?: boolean; listen: string }, command: Command) => {
      const invocation = invocationOf(context, command);
      checkListen(options.listen);
      requireRoot(invocation, "up");
      const supervisor = supervisorOf(invocation.paths.supervisorLock);
      if (supervisor !== null) {
        const status = await waitForInstance(invocation);
        invocation.note("Torpor runs already.");
        invocation.answer(status, () => describeStatus(status, invocation.style));
        return;
      }
      const missing = missingParts(context.installation);
      if (missing.length > 0) {
        throw new CodedError(
          "unsupported",
          `Torpor is not built yet:\n  ${missing.join("\n  ")}\nRun ${join(context.installation.root, "bin", "quickstart")}.`,
        );
      }
      if (options.detach === true) {
        await startDetached(invocation, options.listen);
        const status = await readStatus(invocation.paths);
        invocation.answer(status, () => describeStatus(status, invocation.style));
        return;
      }
      await superviseUntilTold(invocation, options.listen);
    });
}

/** `host:port`, `[v6]:port`; the port from 0 to 65535. */
export function checkListen(listen: string): void {
  const port = /^(?:\[[0-9a-fA-F:]+\]|[^:[\]\s]+):(\d{1,5})$/.exec(listen)?.[1];
  if (port === undefined || Number(port) > 65_535) {
    throw new UsageError(`--listen must be ADDRESS:PORT, for example 127.0.0.1:7070; it is '${listen}'`);
  }
}

/** @throws CodedError when not root, naming the command line that works. */
export function requireRoot(invocation: Invocation, command: string): void {
  if (process.getuid?.() === 0) return;
  const binary = join(invocation.context.installation.root, "bin", "torpor");
  throw new CodedError(
    "permission_denied",
    `'torpor ${command}' needs root: it runs sandboxes, networks and mounts. Run: sudo ${binary} ${command}`,
  );
}

/** Another `up` may be on its way: waits for it to serve. */
async function waitForInstance(invocation: Invocation): ReturnType<typeof readStatus> {
  const deadline = performance.now() + 60_000;
  for (;;) {
    try {
      const status = await readStatus(invocation.paths);
      if (status.healthy || performance.now() > deadline) return status;
    } catch (error) {
      if (performance.now() > deadline || supervisorOf(invocation.paths.supervisorLock) === null) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/** Starts this same program once more, in a session of its own, and waits until it serves. */
async function startDetached(invocation: Invocation, listen: string): Promise<void> {
  const { paths, context } = invocation;
  mkdirSync(paths.logsDir, { recursive: true });
  const logPath = join(paths.logsDir, "supervisor.log");
  const log = openSync(logPath, "a", 0o640);
  const entry = fileURLToPath(
    new URL(import.meta.url.endsWith(".ts") ? "../main.ts" : "../main.js", import.meta.url),
  );
  const runtime = entry.endsWith(".ts") ? ["--import", "tsx", "--conditions=source"] : [];
  const child = spawn(
    process.execPath,
    [...runtime, entry, "up", "--state-dir", paths.stateDir, "--listen", listen],
    { detached: true, cwd: context.installation.root, env: context.env, stdio: ["ignore", log, log, "ipc"] },
  );
  closeSync(log);
  const answer = await new Promise<DetachMessage>((resolve) => {
    child.once("message", (message) => resolve(message as DetachMessage));
    child.once("error", (error) =>
      resolve({
        ready: false,
        code: "internal",
        message: `the supervisor could not be started: ${error.message}`,
      }),
    );
    child.once("exit", (code, signal) =>
      resolve({
        ready: false,
        code: "internal",
        message: `the supervisor ended (${signal ?? code}) before Torpor served; see ${logPath}`,
      }),
    );
  });
  if (child.connected) child.disconnect();
  child.unref();
  if (!answer.ready)
    throw CodedError.fromEnvelope({ error: { ...answer, details: {} } }, "internal", answer.message);
}

async function superviseUntilTold(invocation: Invocation, listen: string): Promise<void> {
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
      listen,
      env: context.env,
      onEvent: (event) => logLine(invocation, describeEvent(event)),
    });
    tell({ ready: true });
    if (process.send === undefined) {
      const status = await readStatus(paths);
      invocation.answer(
        status,
        () =>
          `${describeStatus(status, invocation.style)}\nlogs     ${paths.logsDir}\nstop     ^C, or torpor down`,
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
      return `${event.name}: ${event.ending}; starting it again in ${formatDuration(event.restartInMs)}`;
    case "stopped":
      return `${event.name}: stopped (${event.how})`;
  }
}
