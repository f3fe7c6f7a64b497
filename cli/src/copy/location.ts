import { SANDBOX_ID_PATTERN } from "@torpor/protocol";
import { UsageError } from "../failure.ts";

/** One end of a copy. */
export type Location =
  | { on: "host"; path: string }
  | { on: "sandbox"; id: string; path: string }
  | { on: "pipe" };

/**
 * Reads `ID:/path`, `ID:~/path`, a path of this machine, or `-` for standard input or output. What stands before a
 * colon is an id only if it looks like one, so `C:x` and `a:b` are local files; `./` before a name settles any doubt.
 */
export function parseLocation(text: string): Location {
  if (text === "") throw new UsageError("a path to copy is empty");
  if (text === "-") return { on: "pipe" };
  const colon = text.indexOf(":");
  const id = text.slice(0, colon);
  if (colon > 0 && SANDBOX_ID_PATTERN.test(id)) {
    const path = text.slice(colon + 1);
    if (path === "") throw new UsageError(`'${text}' names no path: write ${id}:/workspace/file`);
    if (!path.startsWith("/") && path !== "~" && !path.startsWith("~/")) {
      throw new UsageError(
        `the path in '${text}' must be absolute, or start with '~/': paths in a sandbox have no current directory`,
      );
    }
    return { on: "sandbox", id, path };
  }
  return { on: "host", path: text };
}

/** The two ends of a copy: exactly one in a sandbox. */
export function parseCopy(source: string, destination: string): [Location, Location] {
  const from = parseLocation(source);
  const to = parseLocation(destination);
  const inSandbox = [from, to].filter((location) => location.on === "sandbox").length;
  if (inSandbox === 0)
    throw new UsageError(
      "neither path is in a sandbox: write one as ID:/path (ids are 20 characters or more; torpor ls shows them)",
    );
  if (inSandbox === 2)
    throw new UsageError("both paths are in sandboxes: copy to this machine first, then on");
  return [from, to];
}

/** The last component of a path in a sandbox; empty for `/`, `~` and paths that end in `/.`. */
export function guestBasename(path: string): string {
  const name = path.replace(/\/+$/, "").split("/").at(-1) ?? "";
  return name === "." || name === "~" ? "" : name;
}

/** `directory/name`, without doubling the slash. */
export function guestJoin(directory: string, name: string): string {
  return directory.endsWith("/") ? `${directory}${name}` : `${directory}/${name}`;
}
