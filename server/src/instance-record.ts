import { readFileSync, renameSync, writeFileSync } from "node:fs";
import { z } from "zod";

const recordSchema = z.object({ pid: z.number().int(), start_time: z.string() });

/** A running process, told apart from a later one of the same pid by when it started. */
interface InstanceRecord {
  pid: number;
  /** Field 22 of `/proc/<pid>/stat`: clock ticks since boot. */
  start_time: string;
  url: string;
  /** Where TLS is spoken too. */
  tls_url?: string;
}

/** Start time of a process, or undefined when there is none of that pid. */
function processStartTime(pid: number): string | undefined {
  let stat: string;
  try {
    stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  } catch {
    return undefined;
  }
  // The name in field 2 may hold spaces and brackets: count from the last bracket, after which field 3 comes.
  const [state, ...fields] = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return state === "Z" || state === "X" ? undefined : fields[18];
}

/** The pid in `file`, if that very process still runs. */
export function liveInstance(file: string): number | undefined {
  let parsed;
  try {
    parsed = recordSchema.safeParse(JSON.parse(readFileSync(file, "utf8")));
  } catch {
    return undefined; // no file, or the half of one: whoever wrote it does not serve
  }
  if (!parsed.success || parsed.data.pid === process.pid) return undefined;
  return processStartTime(parsed.data.pid) === parsed.data.start_time ? parsed.data.pid : undefined;
}

/** Writes this process's record: complete or not at all. */
export function writeInstance(file: string, url: string, tlsUrl: string | undefined): void {
  const record: InstanceRecord = {
    pid: process.pid,
    start_time: processStartTime(process.pid) ?? "",
    url,
    ...(tlsUrl === undefined ? {} : { tls_url: tlsUrl }),
  };
  const temporary = `${file}.${process.pid}`;
  writeFileSync(temporary, `${JSON.stringify(record)}\n`, { mode: 0o644 });
  renameSync(temporary, file);
}
