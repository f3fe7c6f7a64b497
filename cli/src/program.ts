import { Command, Option } from "commander";
import { registerAccount } from "./commands/account.ts";
import { registerAdvise } from "./commands/advise.ts";
import { registerCode } from "./commands/code.ts";
import { registerCompletion } from "./commands/completion.ts";
import { registerCp } from "./commands/cp.ts";
import { registerCreate } from "./commands/create.ts";
import { registerDoctor } from "./commands/doctor.ts";
import { registerDown } from "./commands/down.ts";
import { registerEvents } from "./commands/events.ts";
import { registerExec } from "./commands/exec.ts";
import { registerFork } from "./commands/fork.ts";
import { registerKey } from "./commands/key.ts";
import { registerLedger } from "./commands/ledger.ts";
import { registerLogs } from "./commands/logs.ts";
import { registerLs } from "./commands/ls.ts";
import { registerMetrics } from "./commands/metrics.ts";
import { registerNetwork } from "./commands/network.ts";
import { registerPort } from "./commands/port.ts";
import { registerPromote } from "./commands/promote.ts";
import { registerRm } from "./commands/rm.ts";
import { registerRun } from "./commands/run.ts";
import { registerSession } from "./commands/session.ts";
import { registerShow } from "./commands/show.ts";
import { registerSleep } from "./commands/sleep.ts";
import { registerSnapshot } from "./commands/snapshot.ts";
import { registerState } from "./commands/state.ts";
import { registerStatus } from "./commands/status.ts";
import { registerTemplate } from "./commands/template.ts";
import { registerTtl } from "./commands/ttl.ts";
import { registerUp } from "./commands/up.ts";
import { registerUsage } from "./commands/usage.ts";
import { registerVersion } from "./commands/version.ts";
import { registerWebhook } from "./commands/webhook.ts";
import type { CliContext } from "./context.ts";

const REGISTRATIONS = [
  registerUp,
  registerDown,
  registerStatus,
  registerDoctor,
  registerRun,
  registerCreate,
  registerAdvise,
  registerExec,
  registerCp,
  registerLs,
  registerShow,
  registerRm,
  registerSession,
  registerTtl,
  registerSleep,
  registerFork,
  registerSnapshot,
  registerNetwork,
  registerPromote,
  registerState,
  registerMetrics,
  registerCode,
  registerPort,
  registerLogs,
  registerEvents,
  registerWebhook,
  registerTemplate,
  registerAccount,
  registerKey,
  registerLedger,
  registerUsage,
  registerCompletion,
  registerVersion,
];

/**
 * The whole command line. Parsing throws `CommanderError` in place of exiting.
 *
 * Global options are accepted before and after the command; options of `run` and `exec` end at the first word that
 * belongs to the command run inside, so `torpor exec ID ls -la` needs no `--`.
 */
export function buildProgram(context: CliContext, options: { quietErrors?: boolean } = {}): Command {
  const program = new Command("torpor");
  program
    .description("Sandboxes for AI agents: ephemeral by default, stateful on purpose.")
    .version(context.installation.version, "-V, --version", "show the version")
    .enablePositionalOptions()
    .exitOverride()
    .configureOutput({
      writeOut: (text) => void context.stdout.write(text),
      writeErr: (text) => {
        if (options.quietErrors !== true) context.stderr.write(text); // with --json the envelope is all there is
      },
    })
    .showSuggestionAfterError()
    .addHelpText("after", EPILOGUE);
  for (const register of REGISTRATIONS) register(program, context);
  addGlobalOptions(program);
  return program;
}

function addGlobalOptions(command: Command): void {
  for (const option of globalOptions()) command.addOption(option);
  command.showHelpAfterError("(add --help for how it is used)");
  for (const child of command.commands) {
    child.exitOverride().copyInheritedSettings(command);
    addGlobalOptions(child);
  }
}

function globalOptions(): Option[] {
  return [
    new Option("--json", "answer with one JSON document; errors as JSON on standard error").helpGroup(
      "Global options:",
    ),
    new Option("--url <url>", "address of the API (TORPOR_URL; else the instance on this machine)").helpGroup(
      "Global options:",
    ),
    new Option(
      "--api-key-file <file>",
      "file with the API key (TORPOR_API_KEY_FILE; or the key itself as TORPOR_API_KEY): a key on the command line would stand in the process list",
    ).helpGroup("Global options:"),
    new Option(
      "--state-dir <dir>",
      "state directory of the instance (TORPOR_STATE_DIR; default /var/lib/torpor)",
    ).helpGroup("Global options:"),
  ];
}

const EPILOGUE = `
Examples:
  sudo torpor up --detach            start Torpor on this machine
  torpor run script.py               run a script in a fresh sandbox, then destroy it
  torpor exec -it ID -- bash         a terminal in a sandbox

Exit codes: 0 success, 1 failure, 2 wrong usage. 'run' and 'exec' end with the command's own exit code;
124 its time limit, 125 Torpor failed, 128+N ended by signal N.`;
