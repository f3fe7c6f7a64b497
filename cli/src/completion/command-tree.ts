import type { Command } from "commander";

/** One command as completion sees it. */
export interface CompletedCommand {
  /** Words after `torpor`, e.g. `template build`; empty for `torpor` itself. */
  path: string;
  words: { word: string; summary: string }[];
  options: { flag: string; summary: string; takesValue: boolean }[];
}

/** Every command of the program, so that completion cannot fall behind it. */
export function describeCommands(program: Command): CompletedCommand[] {
  const found: CompletedCommand[] = [];
  const visit = (command: Command, path: string): void => {
    const children = command.commands;
    const words = children.map((child) => ({ word: child.name(), summary: child.summary() }));
    for (const argument of command.registeredArguments) {
      for (const choice of argument.argChoices ?? [])
        words.push({ word: choice, summary: argument.description });
    }
    const options = command.options
      .filter((option) => option.long !== undefined && !option.hidden)
      .map((option) => ({
        flag: option.long ?? "",
        summary: option.description,
        takesValue: option.required || option.optional,
      }));
    options.push({ flag: "--help", summary: "display help", takesValue: false });
    found.push({ path, words, options });
    for (const child of children) visit(child, path === "" ? child.name() : `${path} ${child.name()}`);
  };
  visit(program, "");
  return found;
}
