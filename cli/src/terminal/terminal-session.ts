import type { Sandbox } from "@torpor/sdk";
import { CodedError } from "@torpor/protocol";
import { WebSocket } from "ws";
import type { CliContext } from "../context.ts";
import { EXIT, UsageError } from "../failure.ts";
import { shellLine } from "./shell-line.ts";

export interface TerminalCommand {
  /** A line for a shell; a login shell when absent. */
  cmd: string | undefined;
  cwd: string | undefined;
  user: string | undefined;
  env: Record<string, string> | undefined;
}

/** Output waiting for a slow terminal before the socket is paused, bytes. */
const HIGH_WATER_BYTES = 256 * 1024;

/** A connection that is silent this long is pinged; one that then stays silent as long again is given up. */
const PING_EVERY_MS = 20_000;

/**
 * Connects this terminal to one in the sandbox until the command ends: raw keys (^C goes to the command), size
 * changes passed on. The terminal is put back as it was whatever happens.
 *
 * @returns the command's exit code.
 * @throws CodedError when the connection is refused or lost.
 */
export async function runTerminal(
  context: CliContext,
  sandbox: Sandbox,
  command: TerminalCommand,
): Promise<number> {
  const { stdin, stdout } = context;
  if (!stdin.isTTY || !stdout.isTTY)
    throw new UsageError(
      "-t needs a terminal on standard input and output; leave it out to run the command plainly",
    );
  const size = (): { cols: number; rows: number } => ({
    cols: stdout.columns || 80,
    rows: stdout.rows || 24,
  });
  const env = Object.entries({ TERM: context.env["TERM"] ?? "xterm-256color", ...command.env }).map(
    ([name, value]) => `${name}=${value}`,
  );
  const cmd = `exec env ${shellLine(env)} ${command.cmd ?? "bash -l"}`;
  const { url, headers } = await sandbox.terminal({ ...size(), cmd, cwd: command.cwd, user: command.user });
  const socket = new WebSocket(url, { headers, perMessageDeflate: false, handshakeTimeout: 30_000 });
  return new Promise<number>((resolve, reject) => {
    let exitCode: number | undefined;
    let failure: unknown;
    let isAlive = true;
    let heartbeat: NodeJS.Timeout | undefined;
    const onKeys = (bytes: Buffer): void => {
      socket.send(bytes);
      // Stop reading a large paste while the network is behind.
      if (socket.bufferedAmount > HIGH_WATER_BYTES) {
        stdin.pause();
        setTimeout(() => stdin.resume(), 20);
      }
    };
    const onResize = (): void => socket.send(JSON.stringify({ type: "resize", ...size() }));
    const onDrain = (): void => socket.resume();
    socket.on("open", () => {
      stdin.setRawMode?.(true);
      stdin.resume();
      stdin.on("data", onKeys);
      stdout.on("resize", onResize);
      stdout.on("drain", onDrain);
      heartbeat = setInterval(() => {
        if (!isAlive) return socket.terminate();
        isAlive = false;
        socket.ping();
      }, PING_EVERY_MS);
    });
    socket.on("pong", () => (isAlive = true));
    socket.on("message", (data: Buffer, isBinary: boolean) => {
      isAlive = true;
      if (isBinary) {
        if (!stdout.write(data)) socket.pause();
        return;
      }
      const control = readControl(data.toString("utf8"));
      if (control?.type === "exit") exitCode = control.exitCode;
      if (control?.type === "error") failure = control.error;
    });
    socket.on("unexpected-response", (_request, response) => {
      const chunks: Buffer[] = [];
      response.on("data", (chunk: Buffer) => chunks.push(chunk));
      response.on("end", () => {
        failure = envelopeError(Buffer.concat(chunks).toString("utf8"), response.statusCode ?? 0);
        socket.terminate();
        finish();
      });
    });
    socket.on(
      "error",
      (error) =>
        (failure ??= new CodedError(
          "host_unavailable",
          `the terminal of sandbox ${sandbox.id} was lost: ${error.message}`,
        )),
    );
    let isFinished = false;
    const finish = (): void => {
      if (isFinished) return;
      isFinished = true;
      clearInterval(heartbeat);
      stdin.off("data", onKeys);
      stdout.off("resize", onResize);
      stdout.off("drain", onDrain);
      stdin.setRawMode?.(false);
      stdin.pause();
      stdin.unref?.();
      if (exitCode !== undefined) return resolve(exitCode);
      reject(
        failure ??
          new CodedError(
            "host_unavailable",
            `the terminal of sandbox ${sandbox.id} was lost before its command ended: the sandbox may have ended (torpor ls --all says why)`,
          ),
      );
    };
    socket.on("close", finish);
  });
}

function readControl(
  text: string,
): { type: "exit"; exitCode: number } | { type: "error"; error: CodedError } | undefined {
  let message: Record<string, unknown>;
  try {
    message = JSON.parse(text) as Record<string, unknown>;
  } catch {
    return undefined; // not ours to understand: newer servers may say more
  }
  if (message["type"] === "exit") {
    const code = message["exit_code"];
    return { type: "exit", exitCode: typeof code === "number" && code >= 0 ? code : EXIT.torporFailed };
  }
  if (message["type"] === "error")
    return { type: "error", error: CodedError.fromEnvelope(message, "internal", text) };
  return undefined;
}

function envelopeError(text: string, status: number): CodedError {
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    body = undefined;
  }
  return CodedError.fromEnvelope(body, "internal", `the server refused the terminal with status ${status}`);
}
