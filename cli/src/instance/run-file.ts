import { readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import type { ProcessIdentity } from "./process-identity.ts";

/** What host and server write when they serve (`run/host.json`, `run/server.json`). */
export interface RunFile extends ProcessIdentity {
  url?: string;
  socket?: string;
  /** Where the server speaks TLS too. */
  tls_url?: string;
}

/** `run/instance.json`, written by the supervisor once both serve. */
export interface InstanceFile {
  version: string;
  /** What was built when it was started. */
  build: string;
  url: string;
  /** As it was asked for; empty in one of an older build. */
  listen: string;
  state_dir: string;
  api_key_file: string;
  driver: string;
  acceleration: string;
  started_at: string;
  supervisor: ProcessIdentity;
  /** The local authority that clients are to trust for TLS; null where the certificate is not the instance's own. */
  authority_file: string | null;
  /** What it was started with, without credentials; see kept-settings.ts. */
  settings: Record<string, string>;
}

function readJson(path: string): Record<string, unknown> | null {
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return null;
    throw error; // unreadable is not absent: EACCES must not look like "nothing runs"
  }
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : null;
  } catch {
    return null; // cut off by a crash of the machine: whatever wrote it is gone
  }
}

function readIdentity(value: unknown): ProcessIdentity | null {
  if (typeof value !== "object" || value === null) return null;
  const { pid, start_time } = value as Record<string, unknown>;
  const ticks = Number(start_time);
  return Number.isInteger(pid) && Number(pid) > 0 && Number.isFinite(ticks)
    ? { pid: Number(pid), start_time: ticks }
    : null;
}

/** Reads a run file; null when there is none or it makes no sense. @throws when it may not be read */
export function readRunFile(path: string): RunFile | null {
  const value = readJson(path);
  const identity = readIdentity(value);
  if (value === null || identity === null) return null;
  const file: RunFile = identity;
  if (typeof value["url"] === "string") file.url = value["url"];
  if (typeof value["socket"] === "string") file.socket = value["socket"];
  if (typeof value["tls_url"] === "string") file.tls_url = value["tls_url"];
  return file;
}

/** Reads `run/instance.json`; null when there is none or it makes no sense. @throws when it may not be read */
export function readInstanceFile(path: string): InstanceFile | null {
  const value = readJson(path);
  const supervisor = readIdentity(value?.["supervisor"]);
  if (value === null || supervisor === null || typeof value["url"] !== "string") return null;
  const text = (name: string): string => (typeof value[name] === "string" ? value[name] : "");
  return {
    version: text("version"),
    build: text("build"),
    url: value["url"],
    listen: text("listen"),
    state_dir: text("state_dir"),
    api_key_file: text("api_key_file"),
    driver: text("driver"),
    acceleration: text("acceleration"),
    started_at: text("started_at"),
    supervisor,
    authority_file: typeof value["authority_file"] === "string" ? value["authority_file"] : null,
    settings: readSettings(value["settings"]),
  };
}

/** None in the file of an older build. */
function readSettings(value: unknown): Record<string, string> {
  if (typeof value !== "object" || value === null) return {};
  return Object.fromEntries(
    Object.entries(value).filter((entry): entry is [string, string] => typeof entry[1] === "string"),
  );
}

/** Writes a file so that a reader sees the old one or the new one, never half of it. */
export function writeFileAtomically(path: string, content: string, mode: number): void {
  const temporary = `${path}.${process.pid}.tmp`;
  try {
    writeFileSync(temporary, content, { mode });
    renameSync(temporary, path);
  } catch (error) {
    rmSync(temporary, { force: true });
    throw error;
  }
}
