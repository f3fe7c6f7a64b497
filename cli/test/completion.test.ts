import { spawnSync } from "node:child_process";
import { describe, expect, it } from "vitest";
import { capturedCli } from "./captured-cli.ts";

async function script(shell: string): Promise<string> {
  return (await capturedCli(["completion", shell])).stdout;
}

/** What bash would offer for a line; `torpor` itself is a stand-in that lists one sandbox and one template. */
async function offers(...words: string[]): Promise<string[]> {
  const line = [
    "torpor() { if [[ $1 == ls ]]; then echo sone111111111111111111; else printf 'NAME HASH\\nbase abc\\n'; fi; }",
    await script("bash"),
    `COMP_WORDS=(torpor ${words.map((word) => `'${word}'`).join(" ")}); COMP_CWORD=${words.length}; _torpor; printf '%s\\n' "\${COMPREPLY[@]}"`,
  ].join("\n");
  const { stdout, stderr } = spawnSync("bash", ["-c", line], { encoding: "utf8" });
  expect(stderr).toBe("");
  return stdout.split("\n").filter((word) => word !== "");
}

describe("completion", () => {
  it("offers commands, options, subcommands, sandboxes and templates in bash", async () => {
    expect(await offers("stat")).toEqual(["status", "state"]);
    expect(await offers("hibernate", "s")).toEqual(["sone111111111111111111"]);
    expect(await offers("run", "--tem")).toEqual(["--template"]);
    expect(await offers("template", "")).toEqual(expect.arrayContaining(["build", "ls", "rm"]));
    expect(await offers("template", "build", "")).toEqual(["base"]);
    expect(await offers("exec", "s")).toEqual(["sone111111111111111111"]);
    expect(await offers("exec", "sone", "--", "l")).toEqual([]);
  });

  it("has the same for zsh, and a line a word for fish", async () => {
    expect(await script("zsh")).toContain("bashcompinit");
    const fish = await script("fish");
    expect(fish).toContain("complete -c torpor -n '__fish_use_subcommand' -a 'doctor'");
    expect(fish).toContain("-l 'template'");
  });

  it("knows no other shell", async () => {
    const { exitCode, stderr } = await capturedCli(["completion", "tcsh"]);
    expect(exitCode).toBe(2);
    expect(stderr).toContain("bash, zsh, fish");
  });
});
