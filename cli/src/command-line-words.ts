/** Routes of the API as its messages name them, and the command that does the same. */
const COMMANDS: readonly [route: RegExp, command: string][] = [
  [/\bGET \/v1\/sandboxes\/(\S+)\/urls(?![\w/])/, "torpor port ls $1"],
  [/\bPOST \/v1\/sandboxes\/(\S+)\/wake(?![\w/])/, "torpor wake $1"],
  [/\bGET \/v1\/sandboxes\/(\S+?)\/processes(?![\w/])/, "torpor exec $1 -- ps aux"],
  [/\bGET \/v1\/sandboxes(?![\w/])/, "torpor ls"],
  [/\bGET \/v1\/snapshots(?![\w/])/, "torpor snapshot ls"],
  [/\bGET \/v1\/webhooks(?![\w/])/, "torpor webhook ls"],
  [/\bGET \/v1\/keys(?![\w/])/, "torpor key ls"],
  [/\bPATCH \/v1\/accounts\/([^\s;,]+)/, "torpor account set-limits $1"],
  [/\bGET \/v1\/account(?![\w/])/, "torpor account show"],
];

/** Other words of the API, or of what it passes on from inside a sandbox. */
const PHRASES: readonly [said: RegExp, instead: string][] = [
  [/\bask with \?wake=true\b/, "add --wake"],
  [/\bgo on with after=oldest or after=now\b/, "go on with --after oldest or --after now"],
  // The program and its fault are told once, not by each part that the error went through.
  [/error starting process '[^]*?': (?=program "|starting ")/, ""],
  [/(program "[^]*" is in no folder of PATH \([^)]*\)): file does not exist$/, "$1"],
];

/** Fields of requests whose option has the same name in every command. */
const OPTIONS: Readonly<Record<string, string>> = {
  tenant: "--tenant",
  template: "--template",
  ttl_seconds: "--ttl",
  idle_timeout_seconds: "--idle-timeout",
  retention_seconds: "--retention",
  timeout_seconds: "--timeout",
  max_lifetime_seconds: "--max-lifetime",
  on_expire: "--on-expire",
  on_idle: "--on-idle",
  from_snapshot: "--from-snapshot",
  memory_mb: "--memory",
  disk_mb: "--disk",
  cpu: "--cpu",
  cwd: "--cwd",
};

/** A message of the API in the words of the command line: its commands for routes, its options for fields. */
export function inCommandLineWords(message: string, details: Record<string, unknown> = {}): string {
  let text = message;
  for (const [route, command] of COMMANDS) text = text.replace(route, `'${command}'`);
  for (const [said, instead] of PHRASES) text = text.replace(said, instead);
  const issues: unknown = details["issues"];
  for (const issue of Array.isArray(issues) ? (issues as unknown[]) : []) {
    if (typeof issue !== "object" || issue === null) continue;
    const { path, message: said } = issue as Record<string, unknown>;
    const option = typeof path === "string" && Object.hasOwn(OPTIONS, path) ? OPTIONS[path] : undefined;
    if (option !== undefined)
      text = text.replace(`${String(path)} ${String(said)}`, `${option} ${String(said)}`);
  }
  return text;
}
