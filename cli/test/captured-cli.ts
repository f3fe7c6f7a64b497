import { PassThrough, Readable } from "node:stream";
import type { CliContext } from "../src/context.ts";
import { findInstallation } from "../src/instance/installation.ts";
import { runCli } from "../src/run-cli.ts";

export interface CapturedRun {
  exitCode: number;
  stdout: string;
  stderr: string;
}

/** Runs one command line in this process, with streams and an environment of its own. */
export async function capturedCli(
  args: string[],
  env: NodeJS.ProcessEnv = {},
  stdin: string | Uint8Array = "",
): Promise<CapturedRun> {
  const stdout = new PassThrough();
  const stderr = new PassThrough();
  const collect = async (stream: PassThrough): Promise<string> => {
    let text = "";
    for await (const chunk of stream) text += String(chunk);
    return text;
  };
  const outputs = Promise.all([collect(stdout), collect(stderr)]);
  const context: CliContext = {
    env: { PATH: process.env["PATH"], TORPOR_STATE_DIR: "/nonexistent/torpor", ...env },
    stdin: Readable.from(stdin === "" ? [] : [Buffer.from(stdin as Uint8Array)]),
    stdout,
    stderr,
    installation: findInstallation(),
  };
  const exitCode = await runCli(context, args);
  stdout.end();
  stderr.end();
  const [out, err] = await outputs;
  return { exitCode, stdout: out, stderr: err };
}
