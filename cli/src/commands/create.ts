import { Command, InvalidArgumentError } from "commander";
import type { Network, SandboxCreateOptions, Workload } from "@torpor/sdk";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { parseDuration, parseTimeLimit } from "../terminal/duration.ts";
import { addSecretOption } from "./secret-option.ts";

/** Options of `create` and `run` that say what sandbox to make. */
export interface CreateFlags {
  template?: string;
  ttl?: number;
  persistent?: boolean;
  onExpire?: string;
  idleTimeout?: number;
  onIdle?: string;
  retention?: number;
  autoWake?: boolean;
  hibernateMemory?: boolean;
  fromSnapshot?: string;
  name?: string;
  tenant?: string;
  metadata?: Record<string, string>;
  env?: Record<string, string>;
  secret?: Record<string, string>;
  cpu?: number;
  memory?: number;
  disk?: number;
  network?: string;
  allow?: string[];
  deny?: string[];
  auto?: boolean;
  untrusted?: boolean;
  interactive?: boolean;
  survives?: boolean;
  setup?: number;
  gap?: number;
  acceptRisk?: boolean;
}

/** Adds them to a command. */
export function addCreateOptions(command: Command): Command {
  return addSecretOption(command)
    .option("-t, --template <name>", "template to start from (default code-interpreter)")
    .option(
      "--ttl <time>",
      "destroyed after this long, such as 600, 30m or 12h (default 300 seconds; persistent: never)",
      parseDuration,
    )
    .option("--persistent", "keep it until it is destroyed, asleep when idle; needs --tenant")
    .option("--on-expire <action>", "at the end of the TTL: 'destroy' (default) or 'hibernate'")
    .option(
      "--idle-timeout <time>",
      "idle after this long without use (persistent: 300 seconds)",
      parseDuration,
    )
    .option("--on-idle <action>", "when idle: 'hibernate' (default), 'pause', 'destroy' or 'none'")
    .option(
      "--retention <time>",
      "destroyed after being hibernated this long, such as 30d (default: kept)",
      parseDuration,
    )
    .option("--no-auto-wake", "work does not wake it; 'torpor wake' does")
    .option("--no-hibernate-memory", "it sleeps without memory and processes, and boots from its files")
    .option("--from-snapshot <id>", "start with the memory and files of this snapshot")
    .option("--name <name>", "a name for people")
    .option("--tenant <tenant>", "whose data is inside")
    .option("-m, --metadata <key=value>", "label; may be repeated", collectPair)
    .option(
      "-e, --env <NAME=value>",
      "environment variable; NAME alone takes this shell's; may be repeated",
      collectPair,
    )
    .option("--cpu <cores>", "CPU limit, fractions allowed (default 1)", parseNumber)
    .option("--memory <mb>", "memory limit in MB (default 1024)", parseNumber)
    .option("--disk <mb>", "disk limit in MB (default 4096)", parseNumber)
    .option("--network <policy>", "'internet' (default without --allow) or 'none'")
    .option(
      "--allow <entry>",
      "reach this address, CIDR or domain though all else is refused; may be repeated",
      collectEntry,
    )
    .option("--deny <entry>", "do not reach this address, CIDR or domain; may be repeated", collectEntry);
}

/** Adds `--auto` and what of the workload it goes by. */
export function addAutoOptions(command: Command): Command {
  return command
    .option(
      "--auto",
      "shape and clocks as 'torpor advise' has them for what follows, but for what is set here",
    )
    .option("--survives", "workload: something must survive between uses")
    .option("--no-survives", "workload: nothing needs to survive")
    .option("--interactive", "workload: somebody waits for each answer")
    .option("--untrusted", "workload: the code is not trusted")
    .option("--setup <time>", "workload: time to make a fresh sandbox useful", parseTimeLimit)
    .option("--gap <time>", "workload: usual time from one use to the next", parseTimeLimit)
    .option("--accept-risk", "keep untrusted code in a persistent sandbox");
}

/** What the flags say of a network; undefined when nothing. A word that is none is the server's to refuse. */
export function networkOf({
  network,
  allow,
  deny,
}: Pick<CreateFlags, "network" | "allow" | "deny">): Network | undefined {
  const egress = network as "internet" | "none" | undefined;
  return allow === undefined && deny === undefined ? egress : { egress, allow, deny };
}

/** Gathers entries, one or several by commas. */
export function collectEntry(text: string, gathered: string[] = []): string[] {
  return [...gathered, ...text.split(",").map((entry) => entry.trim())];
}

/** What the client library takes. Bounds are the server's business: its refusal names the field. */
export function createOptions(flags: CreateFlags): SandboxCreateOptions {
  return {
    template: flags.template,
    ttlSeconds: flags.ttl,
    persistent: flags.persistent,
    // Any other word is the server's to refuse, here and below.
    onExpire: flags.onExpire as SandboxCreateOptions["onExpire"],
    idleTimeoutSeconds: flags.idleTimeout,
    onIdle: flags.onIdle as SandboxCreateOptions["onIdle"],
    retentionSeconds: flags.retention,
    autoWake: flags.autoWake === false ? false : undefined,
    hibernateMemory: flags.hibernateMemory === false ? false : undefined,
    fromSnapshot: flags.fromSnapshot,
    name: flags.name,
    tenant: flags.tenant,
    metadata: flags.metadata,
    env: flags.env,
    secrets: flags.secret,
    cpu: flags.cpu,
    memoryMb: flags.memory,
    diskMb: flags.disk,
    network: networkOf(flags),
    lifecycle: flags.auto === true ? "auto" : undefined,
    workload: workloadOf(flags),
    acceptRisk: flags.acceptRisk,
  };
}

/** What the flags say of the workload; undefined when nothing. */
function workloadOf({ survives, interactive, untrusted, setup, gap }: CreateFlags): Workload | undefined {
  const workload: Workload = {
    survives,
    interactive,
    untrusted,
    setupSeconds: setup,
    idleGapSeconds: gap,
  };
  return Object.values(workload).some((fact) => fact !== undefined) ? workload : undefined;
}

/** `torpor create`: a sandbox that stays until its TTL ends it, or its owner does. */
export function registerCreate(program: Command, context: CliContext): void {
  addAutoOptions(addCreateOptions(program.command("create")))
    .summary("create a sandbox")
    .description(
      "Creates a sandbox and prints its id. It is usable at once, and destroyed when its TTL ends; with --persistent it lives until 'torpor rm' and sleeps when idle.",
    )
    .option("-q, --quiet", "print the id alone")
    .action(async (flags: CreateFlags & { quiet?: boolean }, command: Command) => {
      const invocation = invocationOf(context, command);
      const startedAt = performance.now();
      const sandbox = await clientFor(invocation).sandboxes.create(createOptions(flags));
      const tookMs = Math.round(performance.now() - startedAt);
      const { advice } = sandbox;
      invocation.answer(wireForm({ ...sandbox.info, ...(advice && { advice }) }), () => sandbox.id);
      if (advice !== undefined && flags.quiet !== true)
        invocation.note(`advised: ${advice.shape} (${advice.decidedBy}): ${advice.reason}`);
      if (flags.quiet !== true && context.stderr.isTTY)
        invocation.note(invocation.errorStyle.dim(`created in ${tookMs} ms`));
    });
}

/** A number of the command line. */
export function parseNumber(text: string): number {
  const value = Number(text);
  if (text.trim() === "" || !Number.isFinite(value)) throw new InvalidArgumentError("It must be a number.");
  return value;
}

/** Gathers `key=value`; a bare name takes its value from this process's environment, as `docker run -e` does. */
export function collectPair(text: string, gathered: Record<string, string> = {}): Record<string, string> {
  const at = text.indexOf("=");
  if (at === 0 || text === "") throw new InvalidArgumentError("It must be NAME=value.");
  const name = at === -1 ? text : text.slice(0, at);
  const value = at === -1 ? process.env[name] : text.slice(at + 1);
  if (value === undefined)
    throw new InvalidArgumentError(`It must be NAME=value (${name} is not set here either).`);
  return { ...gathered, [name]: value };
}
