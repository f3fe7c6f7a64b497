import type { BuildCommand, BuildSandbox } from "./build-sandbox.ts";
import { BuildFailed } from "./build-failed.ts";
import type { BuildStep } from "./build-spec.ts";
import { copyFiles, type CopyFiles } from "./copy-files.ts";

/** What the steps so far have come to: what the next one starts with. */
export interface BuildContext {
  /** What ENV has set. */
  env: Record<string, string>;
  /** What commands have beside that. */
  parentEnv: Readonly<Record<string, string>>;
  user: string;
  workdir: string;
}

export interface StepParts {
  sandbox: BuildSandbox;
  files: CopyFiles;
  onLine: NonNullable<BuildCommand["onLine"]>;
}

const USER_NAME = /^[a-z_][a-z0-9_-]{0,31}$/;
const ENV_NAME = /^[A-Za-z_][A-Za-z0-9_]*$/;

/** The step as a log shows it. */
export function stepTitle({ type, args }: BuildStep): string {
  return `${type.toUpperCase()} ${(args ?? []).join(" ")}`.trim();
}

/** Runs one step inside. @returns what the next one starts with @throws BuildFailed */
export async function runStep(
  step: BuildStep,
  context: BuildContext,
  parts: StepParts,
): Promise<BuildContext> {
  const args = step.args ?? [];
  switch (step.type.toUpperCase()) {
    case "RUN":
      await run(args, context, parts);
      return context;
    case "COPY":
    case "ADD":
      await copyFiles({ args, filesHash: step.filesHash ?? undefined }, context, parts.sandbox, parts.files);
      return context;
    case "ENV":
    case "ARG":
      return { ...context, env: withEnv(args, context) };
    case "WORKDIR":
      return { ...context, workdir: await makeWorkdir(args, context, parts) };
    case "USER":
      return { ...context, user: await makeUser(args, parts) };
    default:
      throw new BuildFailed(
        `a step of type '${step.type}' is not known here: there are RUN, COPY, ENV, WORKDIR and USER`,
      );
  }
}

async function run(
  [command = "", user = ""]: string[],
  context: BuildContext,
  parts: StepParts,
): Promise<void> {
  if (command.trim() === "") throw new BuildFailed("RUN needs a command");
  const said: string[] = [];
  const onLine: StepParts["onLine"] = (stream, line) => {
    parts.onLine(stream, line);
    if (stream === "stderr" && line.trim() !== "") said[0] = line;
  };
  const tried = `failed to run command '${command.length > 1_000 ? `${command.slice(0, 1_000)}…` : command}'`;
  let failure: string | null;
  try {
    const asked = {
      command,
      user: user === "" ? context.user : user,
      cwd: context.workdir,
      env: context.env,
    };
    ({ failure } = await parts.sandbox.run({ ...asked, onLine }));
  } catch (error) {
    if (!(error instanceof BuildFailed)) throw error;
    throw new BuildFailed(`${tried}: ${error.message}`, { cause: error });
  }
  if (failure !== null)
    throw new BuildFailed(`${tried}: ${failure}${said[0] === undefined ? "" : `: ${said[0]}`}`);
}

function withEnv(args: string[], { env, parentEnv }: BuildContext): Record<string, string> {
  if (args.length === 0 || args.length % 2 !== 0)
    throw new BuildFailed("ENV needs names and values, one after the other");
  const added: Record<string, string> = {};
  for (let index = 0; index < args.length; index += 2) {
    const name = args[index] ?? "";
    if (!ENV_NAME.test(name))
      throw new BuildFailed(`'${name.slice(0, 80)}' is not a name of an environment variable`);
    added[name] = expanded(args[index + 1] ?? "", { ...parentEnv, ...env });
  }
  return { ...env, ...added };
}

/** `$NAME` and `${NAME}` stand for what the variable was before this step, or nothing; `\$` for a dollar sign. */
function expanded(value: string, env: Readonly<Record<string, string>>): string {
  return value.replaceAll(/\\\$|\$\{(\w+)\}|\$([A-Za-z_]\w*)/g, (found, braced?: string, bare?: string) =>
    found === String.raw`\$` ? "$" : (env[braced ?? bare ?? ""] ?? ""),
  );
}

const WORKDIR_SCRIPT = `
set -e
dir=$1 owner=$2
case $dir in /*) ;; *) dir=$PWD/$dir ;; esac
if [ -d "$dir" ]; then cd -- "$dir" && pwd && exit; fi
missing=()
at=$dir
while [ ! -e "$at" ] && [ "$at" != / ]; do missing+=("$at"); at=$(dirname -- "$at"); done
mkdir -p -- "$dir"
for made in "\${missing[@]}"; do chown -- "$owner:" "$made"; done
cd -- "$dir"
pwd`;

/** Folders that are missing are made for the current user. */
async function makeWorkdir([path = ""]: string[], context: BuildContext, parts: StepParts): Promise<string> {
  if (path === "") throw new BuildFailed("WORKDIR needs a path");
  const said: string[] = [];
  const { failure, stdout } = await parts.sandbox.run({
    command: [
      "/bin/bash",
      "-c",
      WORKDIR_SCRIPT,
      "workdir",
      expanded(path, { ...context.parentEnv, ...context.env }),
      context.user,
    ],
    user: "root",
    cwd: context.workdir,
    onLine: (stream, line) => stream === "stderr" && said.push(line),
  });
  if (failure !== null)
    throw new BuildFailed(`failed to create workdir '${path}': ${said.at(-1) ?? failure}`);
  return stdout.replace(/\n$/, "");
}

// Small images have neither `id` nor `useradd`, but busybox's `adduser`.
const USER_SCRIPT = `
while IFS=: read -r name rest; do [ "$name" != "$1" ] || exit 0; done </etc/passwd
PATH=$PATH:/usr/sbin:/sbin
if command -v useradd >/dev/null; then useradd --create-home --shell /bin/bash -- "$1"
else adduser -D -s /bin/bash "$1"; fi`;

/** A user that is missing is made, with a home. */
async function makeUser([name = ""]: string[], parts: StepParts): Promise<string> {
  if (!USER_NAME.test(name))
    throw new BuildFailed(
      `failed to create user: '${name.slice(0, 80)}' is not a user name: lower-case letters, digits, '_' and '-', starting with a letter or '_'`,
    );
  const said: string[] = [];
  const { failure } = await parts.sandbox.run({
    command: ["/bin/bash", "-c", USER_SCRIPT, "user", name],
    user: "root",
    cwd: "/",
    onLine: (stream, line) => stream === "stderr" && said.push(line),
  });
  if (failure !== null) throw new BuildFailed(`failed to create user: '${name}': ${said.at(-1) ?? failure}`);
  return name;
}
