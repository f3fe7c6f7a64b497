import { HintedError } from "../failure.ts";
import { shellLine } from "./shell-line.ts";

/** Whether that error says that there is no program of that name. */
function isMissingProgram(error: unknown): error is Error {
  return (
    error instanceof Error &&
    /^the command was not run: .*(is in no folder of PATH|no such file or directory)/s.test(error.message)
  );
}

/**
 * The error of a command that did not start. One whose first word can only have been meant for a shell gets a hint how to
 * give it to one: `shell` is the command line without that word.
 */
export function withShellHint(error: unknown, words: readonly string[], shell: string): unknown {
  if (!isMissingProgram(error) || !/[\s|;&<>]/.test(words[0] ?? "")) return error;
  return new HintedError(error, `For a shell line: ${shell} ${shellLine([words.join(" ")])}`);
}
