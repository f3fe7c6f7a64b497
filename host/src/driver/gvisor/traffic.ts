import { readFileSync } from "node:fs";
import type { Traffic } from "../driver.ts";

/** Reads what went over the network namespace that a process is in, loopback left out; zeros when it is gone. */
export function readTraffic(pid: number): Traffic {
  let text: string;
  try {
    text = readFileSync(`/proc/${pid}/net/dev`, "utf8");
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "ENOENT" || code === "ESRCH" || code === "EINVAL") return { inBytes: 0, outBytes: 0 };
    throw error;
  }
  return trafficIn(text);
}

/** From the text of proc(5)'s `net/dev`: of each device 8 numbers on what was received, bytes first, and 8 on what was sent. */
export function trafficIn(netDev: string): Traffic {
  const sum: Traffic = { inBytes: 0, outBytes: 0 };
  for (const line of netDev.split("\n").slice(2)) {
    const [name, numbers] = line.split(":");
    if (numbers === undefined || name?.trim() === "lo") continue;
    const fields = numbers.trim().split(/\s+/).map(Number);
    sum.inBytes += fields[0] ?? 0;
    sum.outBytes += fields[8] ?? 0;
  }
  return sum;
}
