import type { HostRepair } from "@torpor/protocol";
import type { Command } from "commander";
import { type CliContext, invocationOf } from "../context.ts";
import { type CheckResult, runChecks } from "../doctor/check.ts";
import { hostRuns, repairLeftovers } from "../doctor/host-findings.ts";
import { instanceChecks } from "../doctor/instance-checks.ts";
import { machineChecks } from "../doctor/machine-checks.ts";
import { EXIT, ExitWith } from "../failure.ts";
import type { Style } from "../output/style.ts";
import { renderTable } from "../output/table.ts";
import { DEFAULT_LISTEN, requireRoot } from "./up.ts";

/** `torpor doctor`: everything Torpor needs, whether it is there, and how to get it. */
export function registerDoctor(program: Command, context: CliContext): void {
  program
    .command("doctor")
    .summary("check this machine and say how to fix what is wrong")
    .description(
      "Checks everything Torpor needs and says how to fix what is missing. Changes nothing without --repair. Exit code 1 when something required fails, or a repair does.",
    )
    .option(
      "--repair",
      "end and remove what the running host finds in place and no sandbox owns, and sandboxes whose record cannot be read",
    )
    .option(
      "--listen <address>",
      "the address 'up' would use",
      context.env["TORPOR_LISTEN"] || DEFAULT_LISTEN,
    )
    .action(async ({ listen, repair }: { listen: string; repair?: boolean }, command: Command) => {
      const invocation = invocationOf(context, command);
      if (repair === true) requireRoot(invocation, "doctor --repair");
      const repaired =
        repair === true && hostRuns(invocation.paths) ? await repairLeftovers(invocation.paths) : null;
      const { programChecks } = await import("../doctor/program-checks.ts");
      const results = await runChecks([
        ...machineChecks({ env: context.env, stateDir: invocation.paths.stateDir }),
        ...programChecks({ env: context.env, root: context.installation.root }),
        ...instanceChecks(invocation, listen),
      ]);
      const failed =
        results.some((result) => result.status === "fail") ||
        (repaired !== null && repaired.failed.length > 0);
      const document = { ok: !failed, checks: results, ...(repaired === null ? {} : { repair: repaired }) };
      invocation.answer(document, () =>
        [
          ...(repaired === null ? [] : [renderRepair(repaired, invocation.style)]),
          renderChecks(results, invocation.style),
        ].join("\n\n"),
      );
      if (failed) throw new ExitWith(EXIT.failure);
    });
}

/** What a repair came to, a line each. */
function renderRepair({ repaired, failed, left }: HostRepair, style: Style): string {
  const lines = [
    ...repaired.map(({ message, repair }) => `${style.green("repaired")} ${message}: ${repair ?? "done"}`),
    ...failed.map(({ finding, error }) => `${style.red("failed")} ${finding.message}: ${error}`),
    ...left.map(({ message }) => `${style.yellow("left")} ${message}`),
  ];
  return lines.length === 0 ? "Nothing to repair." : lines.join("\n");
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
