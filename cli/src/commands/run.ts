import { statSync } from "node:fs";
import { basename, extname, join } from "node:path";
import { Command, InvalidArgumentError } from "commander";
import { LIMITS } from "@torpor/protocol";
import type { Sandbox } from "@torpor/sdk";
import { clientFor } from "../api/client.ts";
import { type CliContext, type Invocation, invocationOf } from "../context.ts";
import { guestBasename } from "../copy/location.ts";
import { forgottenFiles, forgottenHint } from "../copy/forgotten-files.ts";
import { copyIn, copyOut } from "../copy/transfer.ts";
import { EXIT, ExitWith, HintedError, UsageError } from "../failure.ts";
import { instanceCommand } from "../instance/instance-command.ts";
import { parseTimeLimit } from "../terminal/duration.ts";
import { Interruption } from "../terminal/interruption.ts";
import { withShellHint } from "../terminal/start-hint.ts";
import { streamCommand } from "../terminal/stream-command.ts";
import { addCreateOptions, type CreateFlags, createOptions } from "./create.ts";

/** Where scripts and `--in` go, and where commands start. */
const WORKSPACE = "/workspace";

/** Time limit of the command when none is given, seconds. */
const DEFAULT_TIMEOUT_SECONDS = 600;

/** What the sandbox outlives its command by, so that results can be copied out, seconds. */
const TTL_MARGIN_SECONDS = 120;

interface RunFlags extends CreateFlags {
  in?: Copy[];
  out?: Copy[];
  timeout?: number;
  interactive?: boolean;
  cwd?: string;
  user?: string;
  keep?: boolean;
}

interface Copy {
  from: string;
  to: string | undefined;
}

/** `torpor run`: one command in a sandbox that lasts as long as it does. */
export function registerRun(program: Command, context: CliContext): void {
  addCreateOptions(program.command("run"))
    .summary("run a script or command in a fresh sandbox, then destroy it")
    .description(
      "Creates a sandbox, copies files in, runs one command, copies results out and destroys the sandbox, also on ^C. " +
        "Give a script of this machine (torpor run script.py ARGS), or any command after -- (torpor run -- python3 -V). Ends with the command's exit code.",
    )
    .argument("[words...]", "a script and its arguments, or -- and a command")
    .option(
      "--in <path[:guest]>",
      `copy in first: a file to ${WORKSPACE}/, a directory's content into ${WORKSPACE}; may be repeated`,
      collectIn,
    )
    .option(
      "--out <guest[:path]>",
      "copy out afterwards, to this directory unless said otherwise; a relative path is in /workspace, where the command runs; may be repeated",
      collectOut,
    )
    .option(
      "--timeout <time>",
      `time limit of the command, such as 45 or 5m (default ${DEFAULT_TIMEOUT_SECONDS} seconds)`,
      parseTimeLimit,
    )
    .option("-i, --interactive", "give the command this standard input, as it comes")
    .option("-w, --cwd <dir>", `working directory (default ${WORKSPACE})`)
    .option("-u, --user <name>", "run as this user (default 'user')")
    .option("--keep", "do not destroy the sandbox afterwards: print its id")
    .passThroughOptions()
    .action(async (words: string[], flags: RunFlags, command: Command) => {
      const invocation = invocationOf(context, command);
      const plan = planRun(words, isAfterDashes(command, words));
      const timeoutSeconds = flags.timeout ?? DEFAULT_TIMEOUT_SECONDS;
      for (const { from } of flags.in ?? []) requireHostPath(from);
      using interruption = new Interruption();
      const { signal } = interruption;
      const ttl = flags.ttl ?? Math.min(Math.ceil(timeoutSeconds) + TTL_MARGIN_SECONDS, LIMITS.maxTtlSeconds);
      const sandbox = await clientFor(invocation).sandboxes.create({
        ...createOptions({ ...flags, ttl }),
        signal,
      });
      let exitCode: number;
      try {
        await copyAllIn(sandbox, plan.script, flags.in ?? [], signal);
        const cwd = flags.cwd ?? WORKSPACE;
        exitCode = await streamCommand(invocation, sandbox, {
          cmd: plan.cmd,
          cwd,
          env: undefined, // given to the sandbox at create
          user: flags.user,
          stdin: flags.interactive === true ? context.stdin : undefined,
          timeoutSeconds,
          signal,
        }).catch(async (error: unknown) => {
          const hint =
            plan.script === undefined ? await missedFiles(sandbox, plan.cmd, cwd, signal) : undefined;
          if (hint !== undefined && error instanceof Error) throw new HintedError(error, hint);
          throw withShellHint(
            error,
            plan.cmd,
            `${instanceCommand(invocation.paths, "torpor")} run -- bash -c`,
          );
        });
        if (exitCode !== EXIT.ok && plan.script === undefined) {
          const hint = await missedFiles(sandbox, plan.cmd, cwd, signal);
          if (hint !== undefined) invocation.note(`${invocation.errorStyle.yellow("torpor:")} ${hint}`);
        }
        if (!(await copyAllOut(invocation, sandbox, flags.out ?? [], signal)) && exitCode === EXIT.ok)
          exitCode = EXIT.torporFailed;
      } finally {
        await putAway(invocation, sandbox, flags.keep === true && !signal.aborted);
      }
      throw new ExitWith(exitCode);
    });
}

/** Whether the words stood behind `--`, which the parser takes away. */
function isAfterDashes(command: Command, words: readonly string[]): boolean {
  let root: Command = command;
  while (root.parent !== null) root = root.parent;
  const raw = (root as Command & { rawArgs: string[] }).rawArgs;
  const before = raw.length - words.length - 1;
  return before >= 0 && raw[before] === "--";
}

interface RunPlan {
  cmd: string[];
  script: string | undefined;
}

const INTERPRETERS: Readonly<Record<string, string>> = {
  ".py": "python3",
  ".js": "node",
  ".mjs": "node",
  ".cjs": "node",
  ".sh": "bash",
};

/** What to run: the command behind `--` as it is, else a script of this machine with its interpreter. */
function planRun(words: readonly string[], afterDashes: boolean): RunPlan {
  const [first, ...rest] = words;
  if (first === undefined)
    throw new UsageError("nothing to run: torpor run script.py, or torpor run -- COMMAND");
  if (afterDashes) return { cmd: [first, ...rest], script: undefined };
  const found = statSync(first, { throwIfNoEntry: false });
  if (found?.isFile() !== true) {
    throw new UsageError(
      `'${first}' is ${found === undefined ? "not here" : "no file"}: give a script of this machine, or put a command of the sandbox after --, as in: torpor run -- ${words.join(" ")}`,
    );
  }
  const target = join(WORKSPACE, basename(first));
  const interpreter = INTERPRETERS[extname(first).toLowerCase()];
  if (interpreter !== undefined) return { cmd: [interpreter, target, ...rest], script: first };
  if ((found.mode & 0o111) === 0) {
    throw new UsageError(
      `it is not clear how to run '${first}': it is not executable, and its ending is none of ${Object.keys(INTERPRETERS).join(" ")}. Copy it in and name the program: torpor run --in ${first} -- PROGRAM ${target}`,
    );
  }
  return { cmd: [target, ...rest], script: first };
}

/** What to say of files that the command names and that were not copied in; nothing when there are none, or none can tell. */
async function missedFiles(
  sandbox: Sandbox,
  words: readonly string[],
  cwd: string,
  signal: AbortSignal,
): Promise<string | undefined> {
  try {
    const files = await forgottenFiles(sandbox, words, cwd, signal);
    return files.length === 0 ? undefined : forgottenHint(files);
  } catch {
    return undefined; // a hint is not worth an error of its own: the command's stands
  }
}

function requireHostPath(path: string): void {
  if (statSync(path, { throwIfNoEntry: false }) === undefined)
    throw new UsageError(`--in ${path}: it is not there`);
}

async function copyAllIn(
  sandbox: Sandbox,
  script: string | undefined,
  copies: readonly Copy[],
  signal: AbortSignal,
): Promise<void> {
  if (script !== undefined) await copyIn(sandbox, script, `${WORKSPACE}/`, signal);
  for (const { from, to } of copies) {
    const isDirectory = statSync(from).isDirectory();
    await copyIn(
      sandbox,
      isDirectory && to === undefined ? `${from}/.` : from,
      to ?? (isDirectory ? WORKSPACE : `${WORKSPACE}/`),
      signal,
    );
  }
}

/** Copies every result, and says of each that could not be; false when one could not. */
async function copyAllOut(
  invocation: Invocation,
  sandbox: Sandbox,
  copies: readonly Copy[],
  signal: AbortSignal,
): Promise<boolean> {
  let complete = true;
  for (const { from, to } of copies) {
    try {
      await copyOut(sandbox, from, to ?? join(".", guestBasename(from)), signal);
    } catch (error) {
      signal.throwIfAborted();
      complete = false;
      invocation.note(
        `${invocation.errorStyle.red("torpor:")} ${from} was not copied out: ${error instanceof Error ? error.message : String(error)}`,
      );
    }
  }
  return complete;
}

async function putAway(invocation: Invocation, sandbox: Sandbox, keep: boolean): Promise<void> {
  if (keep) return invocation.note(`sandbox ${sandbox.id} is kept until its TTL ends`);
  try {
    await sandbox.destroy({ timeoutMs: 30_000 });
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    invocation.note(
      `${invocation.errorStyle.yellow("torpor:")} sandbox ${sandbox.id} could not be destroyed and is left to its TTL: ${why}`,
    );
  }
}

function splitCopy(text: string): Copy {
  const colon = text.indexOf(":");
  const [from, to] = colon === -1 ? [text, undefined] : [text.slice(0, colon), text.slice(colon + 1)];
  if (from === "" || to === "") throw new InvalidArgumentError("It must be PATH, or FROM:TO.");
  return { from, to };
}

function collectIn(text: string, gathered: Copy[] = []): Copy[] {
  const { from, to } = splitCopy(text);
  return [...gathered, { from, to: to === undefined ? undefined : inWorkspace(to) }];
}

function collectOut(text: string, gathered: Copy[] = []): Copy[] {
  const { from, to } = splitCopy(text);
  return [...gathered, { from: inWorkspace(from), to }];
}

/** A path in the sandbox as the command sees it: a relative one is in the folder it runs in. */
function inWorkspace(path: string): string {
  return path.startsWith("/") || path.startsWith("~/") ? path : `/workspace/${path.replace(/^(\.\/)+/, "")}`;
}
