export { type CliContext, processContext } from "./context.ts";
export { runCli } from "./run-cli.ts";
