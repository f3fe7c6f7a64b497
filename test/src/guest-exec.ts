import type { IncomingMessage } from "node:http";
import {
  CONNECT_END_FLAG,
  decodeEnvelopes,
  encodeEnvelope,
  GUEST_PORT,
  type ProcessEndExtension,
  type ProcessEvent,
  type StartRequest,
} from "@torpor/protocol";
import type { HttpClient } from "./http-client.ts";

export interface GuestExecResult {
  pid: number;
  stdout: string;
  stderr: string;
  end: ProcessEndExtension;
}

export interface GuestExecOptions {
  user?: string;
  env?: Record<string, string>;
  /** Milliseconds until the guest ends the command. Default 30,000. */
  timeoutMs?: number;
  signal?: AbortSignal;
  /** Called with each piece of standard output. */
  onStdout?: (text: string) => void;
  headers?: Record<string, string>;
}

/** Runs a shell command in a machine through the host's proxy, speaking envd's process service as the server does. */
export function guestExec(
  host: HttpClient,
  machineId: string,
  command: string,
  options: GuestExecOptions = {},
): Promise<GuestExecResult> {
  return guestExecAt(host, `/v1/machines/${machineId}/ports/${GUEST_PORT}`, command, options);
}

/** The same where the agent's own routes begin at `prefix`. */
export async function guestExecAt(
  http: HttpClient,
  prefix: string,
  command: string,
  options: GuestExecOptions = {},
): Promise<GuestExecResult> {
  const { user = "user", env = {}, timeoutMs = 30_000, signal, onStdout, headers = {} } = options;
  const start: StartRequest = {
    process: { cmd: "/bin/bash", args: ["-l", "-c", command], envs: env },
    stdin: false,
    torpor: { timeoutMs, user, killOnDisconnect: true },
  };
  const incoming = await http.open(`${prefix}/process.Process/Start`, {
    method: "POST",
    body: Buffer.from(encodeEnvelope(0, start)),
    headers: {
      "content-type": "application/connect+json",
      "connect-protocol-version": "1",
      ...headers,
    },
    ...(signal === undefined ? {} : { signal }),
  });
  if (incoming.statusCode !== 200)
    throw new Error(`exec at ${prefix} answered ${incoming.statusCode}: ${await textOf(incoming)}`);
  const stdout: Buffer[] = [];
  const stderr: Buffer[] = [];
  let pid = 0;
  let end: ProcessEndExtension | undefined;
  for await (const { flags, json } of decodeEnvelopes(incoming as AsyncIterable<Uint8Array>)) {
    if ((flags & CONNECT_END_FLAG) !== 0) {
      const { error } = json as { error?: { code: string; message: string } };
      if (error !== undefined) throw new Error(`exec at ${prefix} failed: ${error.code}: ${error.message}`);
      continue;
    }
    const { event } = json as { event: ProcessEvent };
    pid = event.start?.pid ?? pid;
    if (event.data?.stdout !== undefined) {
      const bytes = Buffer.from(event.data.stdout, "base64");
      stdout.push(bytes);
      onStdout?.(bytes.toString("utf8"));
    }
    if (event.data?.stderr !== undefined) stderr.push(Buffer.from(event.data.stderr, "base64"));
    end = event.end?.torpor ?? end;
  }
  if (end === undefined) throw new Error(`exec at ${prefix} ended without an end event`);
  return {
    pid,
    stdout: Buffer.concat(stdout).toString("utf8"),
    stderr: Buffer.concat(stderr).toString("utf8"),
    end,
  };
}

async function textOf(incoming: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of incoming as AsyncIterable<Buffer>) chunks.push(chunk);
  return Buffer.concat(chunks).toString("utf8").slice(0, 2000);
}
