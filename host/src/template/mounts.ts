import { readFile } from "node:fs/promises";
import { setTimeout } from "node:timers/promises";
import { run } from "@torpor/base";

/** Mount points at or below `dir`, deepest first, from this process's mount table. */
export async function mountsBelow(dir: string, mountinfo?: string): Promise<string[]> {
  const text = mountinfo ?? (await readFile("/proc/self/mountinfo", "utf8"));
  const points: string[] = [];
  for (const line of text.split("\n")) {
    // Fields per proc(5): id parent major:minor root mount-point ...; space, tab, newline and backslash in octal.
    const field = line.split(" ")[4];
    if (field === undefined) continue;
    const point = field.replace(/\\([0-7]{3})/g, (_, digits: string) =>
      String.fromCharCode(Number.parseInt(digits, 8)),
    );
    if (point === dir || point.startsWith(`${dir}/`)) points.push(point);
  }
  return points.reverse();
}

const REMOVE_ATTEMPTS = 8;

/**
 * Removes a folder with all that is in it, after unmounting what is mounted there; never deletes across a mount.
 * Idempotent: a folder that is gone is fine.
 *
 * @throws ProcessError when something stays mounted or cannot be deleted
 */
export async function removeTree(dir: string): Promise<void> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      for (const point of await mountsBelow(dir))
        await run(["umount", "--lazy", "--no-canonicalize", "--", point]);
      await run(["rm", "-rf", "--one-file-system", "--", dir], { timeoutMs: 600_000 });
      return;
    } catch (error) {
      // A process killed a moment ago may still have made a file while the folder was being emptied.
      if (attempt === REMOVE_ATTEMPTS) throw error;
      await setTimeout(100 * attempt);
    }
  }
}
