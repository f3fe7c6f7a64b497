import type { CompletedCommand } from "./command-tree.ts";

/** Shells with a completion script. */
export const SHELLS = ["bash", "zsh", "fish"] as const;

/** Commands whose first operand is the id of a sandbox. */
const TAKES_SANDBOX = [
  "exec",
  "rm",
  "logs",
  "events",
  "cp",
  "hibernate",
  "wake",
  "pause",
  "resume",
  "fork",
  "promote",
  "state",
  "ttl",
  "code",
];
const TAKES_TEMPLATE = ["template build", "template rm"];

/** The script that completes `torpor` in a shell: commands and options from the program, ids and templates asked for. */
export function completionScript(
  shell: (typeof SHELLS)[number],
  commands: readonly CompletedCommand[],
): string {
  switch (shell) {
    case "bash":
      return bashScript(commands);
    case "zsh":
      // zsh runs bash's completions; one script less that can be wrong.
      return `autoload -U +X bashcompinit && bashcompinit\n${bashScript(commands)}`;
    case "fish":
      return fishScript(commands);
  }
}

function bashScript(commands: readonly CompletedCommand[]): string {
  const table = (pick: (command: CompletedCommand) => string[]): string =>
    commands
      .map((command) => `    ${quoted(command.path)}) words=${quoted(pick(command).join(" "))} ;;`)
      .join("\n");
  const groups = commands.filter(
    (command) => command.path !== "" && commands.some((other) => other.path.startsWith(`${command.path} `)),
  );
  return `# Completion of torpor for bash.
_torpor() {
  local current="\${COMP_WORDS[COMP_CWORD]}" path='' word words='' index
  COMPREPLY=()
  for ((index = 1; index < COMP_CWORD; index++)); do
    word="\${COMP_WORDS[index]}"
    [[ "$word" == -- ]] && return 0
    [[ "$word" == -* ]] && continue
    if [[ -z "$path" ]]; then path="$word"; continue; fi
    case "$path" in ${groups.map((group) => group.path).join("|")}) path="$path $word" ;; esac
    break
  done
  if [[ "$current" == -* ]]; then
    case "$path" in
${table((command) => command.options.map((option) => option.flag))}
    esac
  else
    case "$path" in
${table((command) => command.words.map((entry) => entry.word))}
    esac
    case "$path" in
      ${TAKES_SANDBOX.join("|")}) words="$words $(torpor ls --quiet 2>/dev/null)" ;;
      ${TAKES_TEMPLATE.map(quoted).join("|")}) words="$words $(torpor template ls 2>/dev/null | awk 'NR > 1 { print $1 }')" ;;
    esac
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
  case "$path" in
    run|cp) if [[ "$current" != -* ]]; then mapfile -t -O "\${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$current"); fi ;;
  esac
}
complete -o bashdefault -o filenames -F _torpor torpor
`;
}

function fishScript(commands: readonly CompletedCommand[]): string {
  const lines = ["# Completion of torpor for fish.", "complete -c torpor -f"];
  for (const { path, words, options } of commands) {
    const when = fishCondition(
      path,
      words.map((entry) => entry.word),
    );
    for (const { word, summary } of words)
      lines.push(`complete -c torpor -n ${quoted(when.forWords)} -a ${quoted(word)} -d ${quoted(summary)}`);
    for (const { flag, summary, takesValue } of options) {
      lines.push(
        `complete -c torpor -n ${quoted(when.forOptions)} -l ${quoted(flag.slice(2))} -d ${quoted(summary)}${takesValue ? " -r" : ""}`,
      );
    }
    if (TAKES_SANDBOX.includes(path))
      lines.push(`complete -c torpor -n ${quoted(when.forOptions)} -a '(torpor ls --quiet 2>/dev/null)'`);
    if (path === "run" || path === "cp") lines.push(`complete -c torpor -n ${quoted(when.forOptions)} -F`);
  }
  return `${lines.join("\n")}\n`;
}

function fishCondition(path: string, words: readonly string[]): { forWords: string; forOptions: string } {
  if (path === "") return { forWords: "__fish_use_subcommand", forOptions: "__fish_use_subcommand" };
  const seen = path
    .split(" ")
    .map((word) => `__fish_seen_subcommand_from ${word}`)
    .join("; and ");
  return {
    forWords: words.length === 0 ? seen : `${seen}; and not __fish_seen_subcommand_from ${words.join(" ")}`,
    forOptions: seen,
  };
}

/** In single quotes, as all three shells read them. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
