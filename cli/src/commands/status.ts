import type { Command } from "commander";
import { type CliContext, invocationOf } from "../context.ts";
import { instanceCommand } from "../instance/instance-command.ts";
import { type LiveStatus, readStatus } from "../instance/instance-status.ts";
import { formatDuration } from "../output/quantities.ts";
import type { Style } from "../output/style.ts";
import { shellLine } from "../terminal/shell-line.ts";

/** `torpor status`: what runs from the state directory. */
export function registerStatus(program: Command, context: CliContext): void {
  program
    .command("status")
    .summary("show the instance on this machine")
    .description(
      "Shows what runs from the state directory and whether it answers. Needs no root. Exit code 1 when nothing runs.",
    )
    .action(async (_options: unknown, command: Command) => {
      const invocation = invocationOf(context, command);
      const status = await readStatus(invocation.paths, invocation.context.installation);
      invocation.answer(status, () => describeStatus(status, invocation.style));
    });
}

/** The status as lines for a person. */
export function describeStatus(status: LiveStatus, style: Style): string {
  const pid = (value: number): string => (value === 0 ? style.red("down") : `pid ${value}`);
  const health = status.healthy ? style.green("running") : style.yellow("running, but not answering");
  return [
    `torpor ${status.version}: ${health} for ${formatDuration(Date.now() - Date.parse(status.started_at))}`,
    `url      ${style.bold(status.url)}`,
    ...describeTls(status, style),
    `api key  ${status.api_key_file}`,
    `state    ${status.state_dir}`,
    ...describeSettings(status),
    `driver   ${status.driver} (${status.acceleration})`,
    `host     ${pid(status.pids.host)}`,
    `server   ${pid(status.pids.server)}`,
    ...(status.outdated
      ? [
          style.yellow(
            `It runs an older build: ${instanceCommand({ stateDir: status.state_dir }, "sudo torpor down --keep-sandboxes")}, then ${instanceCommand({ stateDir: status.state_dir }, "sudo torpor up --detach")}, change over.`,
          ),
        ]
      : []),
  ].join("\n");
}

/** What it was started with beside the address, which the URL tells. */
function describeSettings({ settings }: LiveStatus): string[] {
  const words = Object.entries(settings)
    .filter(([name]) => name !== "TORPOR_LISTEN")
    .map(([name, value]) => `${name}=${value}`);
  return words.length === 0 ? [] : [`settings ${shellLine(words)}`];
}

/** Where TLS is spoken, and how clients come to trust what the instance signs itself. */
function describeTls({ tls }: LiveStatus, style: Style): string[] {
  if (tls === null) return [];
  const lines = [`tls      ${style.bold(tls.url)}`];
  if (tls.authority_file !== null) {
    const file = shellLine([tls.authority_file]);
    lines.push(
      `trust    export NODE_EXTRA_CA_CERTS=${file} for Node, SSL_CERT_FILE=${file} for Python, Go and others; curl --cacert ${file}`,
    );
  }
  return lines;
}
