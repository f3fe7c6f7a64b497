import { spawn } from "node:child_process";
import { closeSync, mkdirSync, openSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Command } from "commander";
import { CodedError } from "@torpor/protocol";
import type { CliContext, Invocation } from "../context.ts";
import { invocationOf } from "../context.ts";
import { UsageError } from "../failure.ts";
import { otherSettings, requireLocalTls, requireSameListen } from "../instance/asked-otherwise.ts";
import { instanceCommand } from "../instance/instance-command.ts";
import { missingParts } from "../instance/installation.ts";
import { readStatus } from "../instance/instance-status.ts";
import { withKeptSettings } from "../instance/kept-settings.ts";
import type { DetachMessage, StartWith } from "../instance/supervise.ts";
import { supervisorOf } from "../instance/supervisor-lock.ts";
import { describeStatus } from "./status.ts";

/** Where the API listens when nothing else is said. */
export const DEFAULT_LISTEN = "127.0.0.1:7070";

/** `torpor up`: host and server on this machine, supervised. */
export function registerUp(program: Command, context: CliContext): void {
  program
    .command("up")
    .summary("start Torpor on this machine")
    .description(
      "Starts the host and the server and keeps them running. In the foreground it stays as their supervisor and ^C " +
        "stops everything, sandboxes included; with --detach it returns once the API answers. Settings of the last start (this " +
        "address, TLS, TORPOR_* variables) hold until others are given; an empty variable takes its setting back. Needs root.",
    )
    .option("-d, --detach", "go on in the background; returns when the API answers")
    .option(
      "--listen <address>",
      `address and port of the API (0 picks a free port; TORPOR_LISTEN; at first ${DEFAULT_LISTEN})`,
    )
    .option(
      "--tls",
      "speak TLS too, with a certificate of the instance's own authority (TORPOR_TLS=local asks for it as well); prints how clients trust it",
    )
    .option("--reset-settings", "forget the settings of the last start")
    .action(async (options: UpOptions, command: Command) => {
      const invocation = invocationOf(context, command);
      const { env } = context;
      const listenAsked = options.listen ?? env["TORPOR_LISTEN"];
      if (listenAsked) checkListen(listenAsked);
      const asked = {
        ...(listenAsked ? { listen: listenAsked } : {}),
        localTls: asksForLocalTls(options.tls === true, env),
      };
      requireRoot(
        invocation,
        `up${options.detach === true ? " --detach" : ""}${listenAsked ? ` --listen ${listenAsked}` : ""}${options.tls === true ? " --tls" : ""}${options.resetSettings === true ? " --reset-settings" : ""}`,
      );
      const supervisor = supervisorOf(invocation.paths.supervisorLock);
      if (supervisor !== null) {
        await answerRunning(invocation, asked, options.resetSettings === true);
        return;
      }
      const start = toStartWith(invocation, asked, options.resetSettings === true);
      const missing = missingParts(context.installation);
      if (missing.length > 0) {
        throw new CodedError(
          "unsupported",
          `Torpor is not built yet:\n  ${missing.join("\n  ")}\nRun ${join(context.installation.root, "bin", "quickstart")}.`,
        );
      }
      if (options.detach === true) {
        try {
          await startDetached(invocation, start);
        } catch (error) {
          // Another `up` may have been a moment quicker: then there is an instance, which is what was asked for.
          if (supervisorOf(invocation.paths.supervisorLock) === null) throw error;
          await answerRunning(invocation, asked, options.resetSettings === true);
          return;
        }
        const status = await readStatus(invocation.paths, invocation.context.installation);
        invocation.answer(status, () => describeStatus(status, invocation.style));
        return;
      }
      const { superviseUntilTold } = await import("../instance/supervise.ts"); // only the long-running one needs all that
      await superviseUntilTold(invocation, start, (status) => describeStatus(status, invocation.style));
    });
}

interface UpOptions {
  detach?: boolean;
  listen?: string;
  tls?: boolean;
  resetSettings?: boolean;
}

/** What `up` starts an instance with: what is asked for, then the settings of the last start, then the defaults. */
function toStartWith(
  { paths, context }: Invocation,
  asked: { listen?: string; localTls: boolean },
  reset: boolean,
): StartWith {
  const given: NodeJS.ProcessEnv = { ...context.env, ...(asked.localTls ? { TORPOR_TLS: "local" } : {}) };
  const env: NodeJS.ProcessEnv = reset ? given : withKeptSettings(paths, given);
  const listen = asked.listen ?? (env["TORPOR_LISTEN"] || DEFAULT_LISTEN);
  checkListen(listen);
  return { listen, localTls: asksForLocalTls(false, env), env };
}

/** `host:port`, `[v6]:port`; the port from 0 to 65535. */
export function checkListen(listen: string): void {
  const port = /^(?:\[[0-9a-fA-F:]+\]|[^:[\]\s]+):(\d{1,5})$/.exec(listen)?.[1];
  if (port === undefined || Number(port) > 65_535) {
    throw new UsageError(`--listen must be ADDRESS:PORT, for example 127.0.0.1:7070; it is '${listen}'`);
  }
}

/** Whether a certificate of the instance's own is asked for. @throws UsageError when one is given too, or TORPOR_TLS is no such word */
function asksForLocalTls(flag: boolean, env: NodeJS.ProcessEnv): boolean {
  const word = env["TORPOR_TLS"] ?? "";
  if (word !== "" && word !== "local")
    throw new UsageError(`TORPOR_TLS must be 'local' or unset; it is '${word}'`);
  const asked = flag || word === "local";
  if (asked && (env["TORPOR_TLS_CERT"] || env["TORPOR_TLS_KEY"]))
    throw new UsageError(
      "a certificate is given by TORPOR_TLS_CERT and TORPOR_TLS_KEY, and one of the instance's own is asked for: choose one",
    );
  return asked;
}

/** @throws CodedError when not root, naming the command line that works. */
export function requireRoot(invocation: Invocation, command: string): void {
  if (process.getuid?.() === 0) return;
  throw new CodedError(
    "permission_denied",
    `'torpor ${command}' needs root: it runs sandboxes, networks and mounts. Run: ${instanceCommand(invocation.paths, `sudo torpor ${command}`)}`,
  );
}

/** Tells of the instance that runs already. @throws CodedError `conflict` when it is not as asked */
async function answerRunning(
  invocation: Invocation,
  asked: { listen?: string; localTls: boolean },
  reset: boolean,
): Promise<void> {
  const { paths, context } = invocation;
  const status = await waitForInstance(invocation);
  if (asked.listen !== undefined) requireSameListen(paths, asked.listen);
  if (asked.localTls) requireLocalTls(paths);
  invocation.note("Torpor runs already.");
  let others: string[] = [];
  try {
    others = otherSettings(paths, context.env, reset);
  } catch (error) {
    invocation.note(
      `${invocation.errorStyle.yellow("torpor:")} whether it was started with other settings cannot be told: ${error instanceof Error ? error.message : String(error)}`,
    );
  }
  if (others.length > 0)
    invocation.note(
      `${invocation.errorStyle.yellow("torpor:")} it was started with other settings, which stay: ${others.join(", ")}. To change over: ${instanceCommand(paths, "sudo torpor down --keep-sandboxes")}, then up again`,
    );
  invocation.answer(status, () => describeStatus(status, invocation.style));
}

/** Another `up` may be on its way: waits for it to serve. */
async function waitForInstance(invocation: Invocation): ReturnType<typeof readStatus> {
  const deadline = performance.now() + 60_000;
  for (;;) {
    try {
      const status = await readStatus(invocation.paths, invocation.context.installation);
      if (status.healthy || performance.now() > deadline) return status;
    } catch (error) {
      if (performance.now() > deadline || supervisorOf(invocation.paths.supervisorLock) === null) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/** Starts this same program once more, in a session of its own, and waits until it serves. */
async function startDetached(invocation: Invocation, { listen, localTls, env }: StartWith): Promise<void> {
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
    [
      ...runtime,
      entry,
      "up",
      "--state-dir",
      paths.stateDir,
      "--listen",
      listen,
      ...(localTls ? ["--tls"] : []),
      "--reset-settings", // those kept are in its environment already
    ],
    { detached: true, cwd: context.installation.root, env, stdio: ["ignore", log, log, "ipc"] },
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
