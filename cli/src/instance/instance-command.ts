import { shellLine } from "../terminal/shell-line.ts";
import { DEFAULT_STATE_DIR, type InstancePaths } from "./instance-paths.ts";

/**
 * A command line to be shown to a person, for this very instance: with `--state-dir` when it is not the default one, which
 * sudo and another shell would otherwise take it for.
 */
export function instanceCommand({ stateDir }: Pick<InstancePaths, "stateDir">, command: string): string {
  return stateDir === DEFAULT_STATE_DIR ? command : `${command} --state-dir ${shellLine([stateDir])}`;
}
