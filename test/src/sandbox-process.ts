import { readdirSync, readFileSync } from "node:fs";
import type { Instance } from "./instance.ts";

/** The runtime's process of each of the instance's machines, those that wait in a pool too. */
export function runtimeProcesses(instance: Instance): { pid: number; slot: number }[] {
  const found: { pid: number; slot: number }[] = [];
  for (const name of readdirSync("/proc")) {
    if (!/^\d+$/.test(name)) continue;
    let command = "";
    try {
      command = readFileSync(`/proc/${name}/cmdline`, "utf8");
    } catch {
      continue;
    }
    if (!command.startsWith("runsc-sandbox") || !command.includes(instance.stateDir)) continue;
    const slot = /\/machines\/(\d+)\//.exec(command)?.[1];
    if (slot !== undefined) found.push({ pid: Number(name), slot: Number(slot) });
  }
  return found;
}

/** The process whose end is the machine's end. */
export function sandboxProcess(instance: Instance, machineId: string): number {
  const slot = Number(slotOf(instance, machineId));
  const found = runtimeProcesses(instance).find((candidate) => candidate.slot === slot);
  if (found === undefined) throw new Error(`no runtime process of ${machineId}`);
  return found.pid;
}

/** The slot is nobody's business but the host's; its log names it. */
export function slotOf(instance: Instance, machineId: string): string | undefined {
  return new RegExp(`"sandboxId":"${machineId}".*"slot":(\\d+)`).exec(instance.log("host"))?.[1];
}
