import { accessSync, constants, statSync } from "node:fs";
import { delimiter, join } from "node:path";

/** Where administrators' programs are, though not on everybody's PATH. */
const MORE_DIRECTORIES = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/** The path of a program, searched as the host does: PATH, then the administrators' directories. */
export function findProgram(name: string, path: string | undefined): string | undefined {
  for (const directory of [
    ...(path ?? "").split(delimiter).filter((entry) => entry !== ""),
    ...MORE_DIRECTORIES,
  ]) {
    const candidate = join(directory, name);
    try {
      accessSync(candidate, constants.X_OK);
      if (statSync(candidate).isFile()) return candidate;
    } catch {
      continue;
    }
  }
  return undefined;
}
