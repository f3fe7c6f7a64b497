import type { Readable, Writable } from "node:stream";
import type { Command } from "commander";
import { type Installation, findInstallation } from "./instance/installation.ts";
import { DEFAULT_STATE_DIR, type InstancePaths, instancePaths } from "./instance/instance-paths.ts";
import { styleFor, type Style } from "./output/style.ts";

/** Standard output or error: a terminal, a file or a pipe. */
type OutputStream = Writable & Partial<Pick<NodeJS.WriteStream, "isTTY" | "columns" | "rows">>;

/** Standard input: a terminal, a file or a pipe. */
type InputStream = Readable & Partial<Pick<NodeJS.ReadStream, "isTTY" | "setRawMode" | "unref">>;

/** What a command sees of the outside world, so that tests can stand in for all of it. */
export interface CliContext {
  env: NodeJS.ProcessEnv;
  stdin: InputStream;
  stdout: OutputStream;
  stderr: OutputStream;
  installation: Installation;
}

/** The world of this process. */
export function processContext(): CliContext {
  const { env, stdin, stdout, stderr } = process;
  return { env, stdin, stdout, stderr, installation: findInstallation() };
}

/** Options that every command takes. */
export interface GlobalOptions {
  json?: boolean;
  url?: string;
  apiKeyFile?: string;
  stateDir?: string;
}

/** One command being run: the world, the global options, and ways to answer. */
export class Invocation {
  readonly context: CliContext;
  readonly options: GlobalOptions;
  readonly paths: InstancePaths;
  /** For standard output. */
  readonly style: Style;
  /** For standard error. */
  readonly errorStyle: Style;

  constructor(context: CliContext, options: GlobalOptions) {
    this.context = context;
    this.options = options;
    this.paths = instancePaths(options.stateDir ?? (context.env["TORPOR_STATE_DIR"] || DEFAULT_STATE_DIR));
    this.style = styleFor(context.stdout, context.env);
    this.errorStyle = styleFor(context.stderr, context.env);
  }

  /** Whether the answer is one JSON document. */
  get json(): boolean {
    return this.options.json === true;
  }

  /** The answer: as JSON when asked, else as text. */
  answer(document: unknown, text: () => string): void {
    const output = this.json ? JSON.stringify(document, null, 2) : text();
    if (output !== "") this.context.stdout.write(output.endsWith("\n") ? output : `${output}\n`);
  }

  /** Something worth knowing that is not the answer: on standard error, and never when JSON is asked for. */
  note(message: string): void {
    if (!this.json) this.context.stderr.write(`${message}\n`);
  }
}

/** The invocation of a command, with the global options wherever on the line they stood. */
export function invocationOf(context: CliContext, command: Command): Invocation {
  return new Invocation(context, command.optsWithGlobals<GlobalOptions>());
}
