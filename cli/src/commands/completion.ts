import { Argument, type Command } from "commander";
import { type CliContext, invocationOf } from "../context.ts";
import { completionScript, SHELLS } from "../completion/completion-script.ts";
import { describeCommands } from "../completion/command-tree.ts";

/** `torpor completion bash|zsh|fish`. */
export function registerCompletion(program: Command, context: CliContext): void {
  program
    .command("completion")
    .summary("print a completion script for your shell")
    .description(
      "Prints a completion script. bash: source <(torpor completion bash). zsh: source <(torpor completion zsh), after compinit. " +
        "fish: torpor completion fish > ~/.config/fish/completions/torpor.fish",
    )
    .addArgument(new Argument("<shell>", "your shell").choices([...SHELLS]))
    .action((shell: (typeof SHELLS)[number], _flags: unknown, command: Command) => {
      const script = completionScript(shell, describeCommands(program));
      invocationOf(context, command).answer({ shell, script }, () => script);
    });
}
