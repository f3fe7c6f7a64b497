import type { EndReason, Machine } from "@torpor/protocol";
import type { PlacedHost } from "../host/placement.ts";
import type { SandboxRecord } from "../store/sandbox-record.ts";

/** What became of a sandbox whose connection broke. */
export interface LostFate {
  ended: boolean;
  reason: EndReason | "unknown";
  /** A sentence for a person. */
  message: string;
  machine?: Machine;
}

/** What was under way when the connection broke. */
export type LostWork = "command" | "code";

/** Between two questions to the host. */
const ASK_EVERY_MS = 50;

/** States in which a sandbox sleeps, or will before anybody can reach it. */
const ASLEEP: readonly Machine["state"][] = ["hibernating", "hibernated"];

/** Asks the host, for at most `waitMs`, until it knows that the machine has ended: it may notice later than we do. */
export async function machineFate(
  host: PlacedHost,
  record: SandboxRecord,
  waitMs: number,
  work: LostWork = "command",
): Promise<LostFate> {
  const until = performance.now() + waitMs;
  for (;;) {
    let machine: Machine | undefined;
    try {
      machine = await host.client.findMachine(record);
    } catch {
      return {
        ended: false,
        reason: "unknown",
        message: `the host of the sandbox stopped answering, so it is not known how far the ${work} came`,
      };
    }
    if (machine === undefined)
      return { ended: true, reason: "host_lost", message: `the host no longer knows sandbox ${record.id}` };
    const isOver = machine.state === "ended" || machine.state === "failed";
    if (isOver || machine.state === "ending") {
      const reason = machine.reason ?? "runtime_crashed";
      if (isOver || performance.now() >= until) {
        const detail = machine.message === null ? "" : `: ${machine.message}`;
        return {
          ended: isOver,
          reason,
          message: `sandbox ${record.id} ended (${reason})${detail}`,
          machine,
        };
      }
    } else if (ASLEEP.includes(machine.state)) {
      return {
        ended: false,
        reason: "unknown",
        message: `sandbox ${record.id} was hibernated ${afterWake(work, machine)}`,
        machine,
      };
    } else if (performance.now() >= until) {
      return {
        ended: false,
        reason: "unknown",
        message: `the connection into sandbox ${record.id} broke, though the sandbox still runs; see ${work === "code" ? "its variables" : "its processes"} before running the ${work} again`,
        machine,
      };
    }
    await new Promise((resolve) => setTimeout(resolve, ASK_EVERY_MS));
  }
}

function afterWake(work: LostWork, { id, state, image }: Machine): string {
  if (image?.memory === false) {
    const kept = work === "code" ? "its variables are gone" : "it does not go on when the sandbox wakes";
    return `without its memory while the ${work} ran, which ended by that: ${kept}; look at the files before running it again`;
  }
  const proviso = state === "hibernating" ? ", if its memory is kept" : ""; // told only once it sleeps
  const follow =
    work === "code"
      ? "its variables are kept, what it shows from here on is not"
      : `follow it by its exec_id with GET /v1/sandboxes/${id}/processes/{exec_id}/output`;
  return `while the ${work} ran; the ${work} goes on when the sandbox wakes${proviso}: ${follow}`;
}
