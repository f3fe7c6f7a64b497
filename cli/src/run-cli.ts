import type { CliContext } from "./context.ts";
import { EXIT, reportFailure } from "./failure.ts";
import { styleFor } from "./output/style.ts";
import { buildProgram } from "./program.ts";

/** Runs one command line and answers its exit code. Never throws. */
export async function runCli(context: CliContext, args: readonly string[]): Promise<number> {
  // A reader that goes away (`torpor ls | head -1`) is no failure of ours, and there is nobody left to tell.
  for (const stream of [context.stdout, context.stderr]) {
    stream.on("error", (error: NodeJS.ErrnoException) => {
      if (error.code === "EPIPE") process.exit(EXIT.ok);
      throw error;
    });
  }
  const words = args.slice(0, args.includes("--") ? args.indexOf("--") : args.length);
  const json = words.includes("--json");
  const style = styleFor(context.stderr, context.env);
  const program = buildProgram(context, { quietErrors: json });
  try {
    await program.parseAsync([...args], { from: "user" });
    return process.exitCode === undefined ? EXIT.ok : Number(process.exitCode);
  } catch (error) {
    const runsCommand =
      words.find((word) => !word.startsWith("-")) === "run" ||
      words.find((word) => !word.startsWith("-")) === "exec";
    const { text, exitCode } = reportFailure(error, {
      json,
      style,
      debug: (context.env["TORPOR_DEBUG"] ?? "") !== "",
      ...(runsCommand ? { torporFailedExit: EXIT.torporFailed } : {}),
    });
    if (text !== "") context.stderr.write(text);
    return exitCode;
  }
}
