import { processContext } from "./context.ts";
import { runCli } from "./run-cli.ts";

process.exitCode = await runCli(processContext(), process.argv.slice(2));
