import { readFile } from "node:fs/promises";
import { join } from "node:path";
import type { EndReason } from "@torpor/protocol";

/** An end this soon after the kernel killed something in the group for memory is taken to come of it. */
const OOM_WINDOW_MS = 5000;

/** Why a machine whose processes have ended by themselves did so, as a person reads it. */
export async function crashReason(
  directory: string,
  memoryMb: number,
  lastOomAt: number | null,
  now: number,
): Promise<[EndReason, string]> {
  if (lastOomAt !== null && now - lastOomAt < OOM_WINDOW_MS) {
    return ["oom", `it used more than its ${memoryMb} MB of memory and was ended by the kernel`];
  }
  const panic = await readFile(join(directory, "panic.log"), "utf8").catch(() => "");
  const why = panic.trim().split("\n")[0] ?? "";
  return [
    "runtime_crashed",
    `its runtime process ended unexpectedly${why === "" ? "" : `: ${why.slice(0, 500)}`}`,
  ];
}
