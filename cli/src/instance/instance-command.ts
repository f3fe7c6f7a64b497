import { join } from "node:path";
import { shellLine } from "../terminal/shell-line.ts";
import { findInstallation } from "./installation.ts";
import { DEFAULT_STATE_DIR, type InstancePaths } from "./instance-paths.ts";

/**
 * A command line to be shown to a person, for this very instance: `torpor` by its path, since it is on no PATH, least of all
 * sudo's; with `--state-dir` when it is not the default one, which sudo and another shell would otherwise take it for.
 */
export function instanceCommand({ stateDir }: Pick<InstancePaths, "stateDir">, command: string): string {
  const named = command.replace(/^(sudo )?torpor(?= |$)/, (_, sudo: string | undefined) => {
    return `${sudo ?? ""}${shellLine([join(findInstallation().root, "bin", "torpor")])}`;
  });
  return stateDir === DEFAULT_STATE_DIR ? named : `${named} --state-dir ${shellLine([stateDir])}`;
}
