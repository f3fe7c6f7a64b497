import { type ChildProcess, spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import type { Scope } from "@torpor/base";
import type { FakeHost } from "./fake-host.ts";

/** The real `main.ts` as a process of its own, before a fake host. */
export interface ServerProcess {
  child: ChildProcess;
  url: string;
  pid: number;
  exited: Promise<{ code: number | null; signal: string | null }>;
  stderr(): string;
  /** Resident memory, bytes. */
  residentBytes(): number;
}

/** Starts it, to be killed with `scope`, and waits until it serves. @throws Error with its standard error when it ends instead. */
export async function startServerProcess(
  scope: Scope,
  host: FakeHost,
  stateDir: string,
  env: Record<string, string> = {},
): Promise<ServerProcess> {
  const child = spawn(
    process.execPath,
    ["--import", "tsx", "--conditions=source", fileURLToPath(new URL("../src/main.ts", import.meta.url))],
    {
      cwd: fileURLToPath(new URL("..", import.meta.url)),
      env: {
        PATH: process.env["PATH"],
        TORPOR_STATE_DIR: stateDir,
        TORPOR_LISTEN: "127.0.0.1:0",
        TORPOR_HOST_URL: host.url,
        TORPOR_HOST_TOKEN: host.token,
        ...env,
      },
      stdio: ["ignore", "pipe", "pipe"],
    },
  );
  const exited = new Promise<{ code: number | null; signal: string | null }>((resolve) =>
    child.once("exit", (code, signal) => resolve({ code, signal })),
  );
  scope.defer(async () => {
    child.kill("SIGKILL");
    await exited;
  });
  let stderr = "";
  child.stderr.on("data", (chunk: Buffer) => (stderr = (stderr + String(chunk)).slice(-64_000)));
  const ready = new Promise<{ url: string; pid: number }>((resolve) =>
    createInterface(child.stdout).once("line", (line) =>
      resolve(JSON.parse(line) as { url: string; pid: number }),
    ),
  );
  const first = await Promise.race([ready, exited]);
  if (!("url" in first)) throw new Error(`the server ended with ${first.code}: ${stderr}`);
  return {
    child,
    url: first.url,
    pid: first.pid,
    exited,
    stderr: () => stderr,
    residentBytes: () =>
      Number(/^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${first.pid}/status`, "utf8"))?.[1]) * 1024,
  };
}
