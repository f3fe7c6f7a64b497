import type { Command } from "commander";
import { type CliContext, invocationOf } from "../context.ts";
import { type CheckResult, runChecks } from "../doctor/check.ts";
import { instanceChecks } from "../doctor/instance-checks.ts";
import { machineChecks } from "../doctor/machine-checks.ts";
import { EXIT, ExitWith } from "../failure.ts";
import type { Style } from "../output/style.ts";
import { renderTable } from "../output/table.ts";
import { DEFAULT_LISTEN } from "./up.ts";

/** `torpor doctor`: everything Torpor needs, whether it is there, and how to get it. */
export function registerDoctor(program: Command, context: CliContext): void {
  program
    .command("doctor")
    .summary("check this machine and say how to fix what is wrong")
    .description(
      "Checks everything Torpor needs and says how to fix what is missing. Changes nothing. Exit code 1 when something required fails.",
    )
    .option(
      "--listen <address>",
      "the address 'up' would use",
      context.env["TORPOR_LISTEN"] || DEFAULT_LISTEN,
    )
    .action(async ({ listen }: { listen: string }, command: Command) => {
      const invocation = invocationOf(context, command);
      const { programChecks } = await import("../doctor/program-checks.ts");
      const results = await runChecks([
        ...machineChecks({ env: context.env, stateDir: invocation.paths.stateDir }),
        ...programChecks({ env: context.env, root: context.installation.root }),
        ...instanceChecks(invocation, listen),
      ]);
      const failed = results.some((result) => result.status === "fail");
      invocation.answer({ ok: !failed, checks: results }, () => renderChecks(results, invocation.style));
      if (failed) throw new ExitWith(EXIT.failure);
    });
}

/** The table, and below it what to do, one paragraph for each finding. */
export function renderChecks(results: readonly CheckResult[], style: Style): string {
  const paint = { ok: style.green, warn: style.yellow, fail: style.red };
  const table = renderTable(
    ["", "CHECK", "FOUND"],
    results.map((result) => [paint[result.status](result.status), result.name, result.found]),
  );
  const troubles = results.filter((result) => result.fix !== null);
  const paragraphs = troubles.map(
    (result) => `${paint[result.status](result.name)}: ${result.why}.\n  ${result.fix}`,
  );
  const failed = results.filter((result) => result.status === "fail").length;
  const warned = troubles.length - failed;
  const verdict =
    failed > 0
      ? style.red(`${failed} of what Torpor needs ${failed === 1 ? "is" : "are"} missing.`)
      : `${style.green("Torpor can run here")}${warned > 0 ? `; ${warned} to look at.` : "."}`;
  return [table, ...paragraphs, verdict].join("\n\n");
}
