import { Command, InvalidArgumentError } from "commander";
import type { Advice, AdviseOptions } from "@torpor/sdk";
import { STATE_KINDS, type StateKind } from "@torpor/protocol";
import { renderAdvice } from "../advise/render-advice.ts";
import { replay } from "../advise/replay-command.ts";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, type Invocation, invocationOf } from "../context.ts";
import { UsageError } from "../failure.ts";
import { parseTimeLimit } from "../terminal/duration.ts";
import { parseNumber } from "./create.ts";

/** Options of `advise`; what is not given is unknown. */
interface AdviseFlags {
  survives?: true | StateKind[] | [];
  untrusted?: boolean;
  interactive?: boolean;
  singleTenant?: boolean;
  gap?: number;
  setup?: number;
  use?: number;
  usesPerDay?: number;
  memory?: number;
  template?: string;
  sandbox?: string;
  replay?: string | true;
  tenant?: string;
  chart?: string;
}

/** `torpor advise`: which shape to pick, and what each costs. */
export function registerAdvise(program: Command, context: CliContext): void {
  program
    .command("advise")
    .summary("which shape to pick, why, and what each costs")
    .description(
      "Walks six questions and answers with a shape, its settings, and what each alternative costs a day, from times measured on the server's machine. What is not said is unknown. With --replay it plays a trace of uses, or what a tenant did, through every policy. Makes nothing and wakes nothing.",
    )
    .option(
      "--survives [kinds]",
      `it must survive between uses: all, or some of ${STATE_KINDS.join(", ")}, by commas`,
      kindsOf,
    )
    .option("--no-survives", "nothing needs to survive")
    .option("--untrusted", "the code is not trusted")
    .option("--no-untrusted", "the code is trusted")
    .option("--interactive", "somebody waits for each answer")
    .option("--no-interactive", "nobody waits for it")
    .option("--single-tenant", "one tenant's data only")
    .option("--no-single-tenant", "several tenants would share it")
    .option("--gap <time>", "usual time from one use to the next, such as 20m", parseTimeLimit)
    .option("--setup <time>", "time to make a fresh sandbox useful", parseTimeLimit)
    .option("--use <time>", "how long one use takes (default 60 seconds)", parseTimeLimit)
    .option("--uses-per-day <number>", "how often it is used", parseNumber)
    .option("--memory <mb>", "memory limit in MB (default 1024)", parseNumber)
    .option("-t, --template <name>", "template whose measured times count (default code-interpreter)")
    .option("--sandbox <id>", "a sandbox of yours: its size, times and use count")
    .option(
      "--replay [trace.csv]",
      "play a trace (time,duration,tenant) through every policy; without a file what --tenant did",
    )
    .option("--tenant <tenant>", "with --replay: whose recorded use is played")
    .option("--chart <file.html>", "with --replay: write a chart to look at")
    .action(async (flags: AdviseFlags, command: Command) => {
      const invocation = invocationOf(context, command);
      if (flags.replay !== undefined) return await replay(invocation, flags, await ask(invocation, flags));
      for (const name of ["tenant", "chart"] as const)
        if (flags[name] !== undefined)
          throw new UsageError(`--${name} is for --replay: give that too, or leave it out`);
      const advice = await ask(invocation, flags);
      invocation.answer(wireForm(advice), () => renderAdvice(advice, invocation.style));
    });
}

async function ask(invocation: Invocation, flags: AdviseFlags): Promise<Advice> {
  const options: AdviseOptions = {
    survives: flags.survives,
    untrusted: flags.untrusted,
    interactive: flags.interactive,
    singleTenant: flags.singleTenant,
    idleGapSeconds: flags.gap,
    setupSeconds: flags.setup,
    useSeconds: flags.use,
    usesPerDay: flags.usesPerDay,
    memoryMb: flags.memory,
    template: flags.template,
    sandboxId: flags.sandbox,
  };
  return await clientFor(invocation).sandboxes.advise(options);
}

function kindsOf(text: string): StateKind[] {
  return text.split(",").map((word) => {
    const kind = STATE_KINDS.find((known) => known === word.trim());
    if (kind === undefined) throw new InvalidArgumentError(`It must be of ${STATE_KINDS.join(", ")}.`);
    return kind;
  });
}
