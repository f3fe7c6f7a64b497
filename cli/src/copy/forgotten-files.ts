import { statSync } from "node:fs";
import { posix } from "node:path";
import type { Sandbox } from "@torpor/sdk";

/** A command has few words that name files; what is asked of the sandbox stays small. */
const MAX_ASKED = 8;

/** Words of a command that name files of this machine, by a relative path, which the sandbox does not have. */
export async function forgottenFiles(
  sandbox: Sandbox,
  words: readonly string[],
  cwd: string,
  signal: AbortSignal,
): Promise<string[]> {
  const named = words
    .filter((word) => !word.startsWith("/") && !word.startsWith("-"))
    .map((word) => posix.normalize(word))
    .filter((word) => !word.startsWith("..") && isFile(word));
  const forgotten: string[] = [];
  for (const word of [...new Set(named)].slice(0, MAX_ASKED)) {
    if (!(await sandbox.files.exists(posix.resolve(cwd, word), { signal }))) forgotten.push(word);
  }
  return forgotten;
}

/** What to say of them. */
export function forgottenHint(files: readonly string[]): string {
  const options = files.map((file) => `--in ${file.includes("/") ? `${file}:${file}` : file}`);
  const [them, were] = files.length === 1 ? ["is", "was"] : ["are", "were"];
  return `${files.join(" and ")} ${them} here but ${were} not copied in; add ${options.join(" ")}`;
}

function isFile(path: string): boolean {
  try {
    return statSync(path).isFile();
  } catch {
    return false; // not there, or no path at all, such as one with a NUL
  }
}
