import { readdirSync, readFileSync } from "node:fs";
import type { Instance } from "./instance.ts";

/** The process whose end is the machine's end. */
export function sandboxProcess(instance: Instance, machineId: string): number {
  for (const name of readdirSync("/proc")) {
    if (!/^\d+$/.test(name)) continue;
    let command = "";
    try {
      command = readFileSync(`/proc/${name}/cmdline`, "utf8");
    } catch {
      continue;
    }
    if (!command.startsWith("runsc-sandbox") || !command.includes(instance.stateDir)) continue;
    if (command.includes(`/machines/${slotOf(instance, machineId)}/`)) return Number(name);
  }
  throw new Error(`no runtime process of ${machineId}`);
}

/** The slot is nobody's business but the host's; its log names it. */
export function slotOf(instance: Instance, machineId: string): string | undefined {
  return new RegExp(`"sandboxId":"${machineId}".*"slot":(\\d+)`).exec(instance.log("host"))?.[1];
}
