import { execFileSync, spawnSync } from "node:child_process";
import { chmodSync, cpSync, existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach, describe, expect, it } from "vitest";

const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))));
let etc: string;
beforeEach(() => (etc = mkdtempSync(join(tmpdir(), "torpor etc "))));
afterEach(() => rmSync(etc, { recursive: true, force: true }));

/** Runs a line of bash with one of the sourced files loaded. */
function bash(library: string, line: string, input = ""): { status: number | null; stdout: string } {
  const { status, stdout } = spawnSync(
    "bash",
    ["-euo", "pipefail", "-c", `source "$1"; shift; ${line}`, "bash", join(root, "bin", "lib", library), etc],
    {
      input,
      encoding: "utf8",
    },
  );
  return { status, stdout };
}

function source(name: string, text: string): void {
  const directory = join(etc, "etc", "apt", "sources.list.d");
  mkdirSync(directory, { recursive: true });
  writeFileSync(name === "sources.list" ? join(etc, "etc", "apt", name) : join(directory, name), text);
}

const backports = (): { status: number | null; stdout: string } =>
  bash("apt-sources.sh", 'machine_apt_entries "$1" | backports_line bookworm /default.gpg');

describe.skipIf(process.getuid?.() !== 0)("root, for a user who is not", () => {
  /** A line of bash as nobody, with a sudo that does as told. */
  const asNobody = (sudo: string, line: string, env: NodeJS.ProcessEnv = {}) => {
    chmodSync(etc, 0o755);
    cpSync(join(root, "bin/lib"), join(etc, "bin/lib"), { recursive: true });
    writeFileSync(join(etc, "sudo"), `#!/bin/sh\n${sudo}\n`, { mode: 0o755 });
    const script = `set -euo pipefail; root=$1; source "$1/bin/lib/install.sh"; PATH="$1:$PATH"; ${line}`;
    const { status, stdout, stderr } = spawnSync(
      "setpriv",
      ["--reuid=65534", "--clear-groups", "--regid=65534", "bash", "-c", script, "bash", etc],
      { encoding: "utf8", input: "", env: { PATH: process.env["PATH"], ...env } },
    );
    return { status, stdout, stderr };
  };

  it("is asked for before any work, and refused in words where sudo refuses", () => {
    expect(asNobody("exit 0", "check_root")).toEqual({ status: 0, stdout: "", stderr: "" });
    expect(asNobody("exit 1", "check_root")).toMatchObject({
      status: 1,
      stderr: expect.stringMatching(/Root is needed, and sudo does not let \S+ have it/) as string,
    });
  });

  it("is given Torpor's settings by name, their values on no command line, and is had without any", () => {
    const told = (env: NodeJS.ProcessEnv): string => asNobody('echo "$@"', "as_root true", env).stdout;
    expect(told({ TORPOR_POOL_TARGET: "17", TORPOR_DATABASE_URL: "hush" })).toMatch(
      /^--preserve-env=TORPOR_DATABASE_URL,TORPOR_POOL_TARGET -- env PATH=.* true\n$/,
    );
    expect(told({})).toMatch(/^-- env PATH=.* true\n$/);
  });
});

describe("a build of which a file is missing", () => {
  const bashIn = (line: string): void =>
    void execFileSync("bash", [
      "-euo",
      "pipefail",
      "-c",
      `root=$2; source "$2/bin/lib/install.sh"; root=$1; ${line}`,
      "bash",
      etc,
      root,
    ]);
  const put = (...path: string[]): void => {
    mkdirSync(dirname(join(etc, ...path)), { recursive: true });
    writeFileSync(join(etc, ...path), "");
  };

  it("is not taken for whole by the compiler's record, and any other is", () => {
    for (const name of ["whole", "torn"]) {
      put(name, "src/deep/main.ts");
      for (const file of ["deep/main.js", "deep/main.d.ts", "tsconfig.tsbuildinfo"]) put(name, "dist", file);
    }
    rmSync(join(etc, "torn/dist/deep/main.js"));
    bashIn("forget_incomplete_builds");
    expect(existsSync(join(etc, "whole/dist/tsconfig.tsbuildinfo"))).toBe(true);
    expect(existsSync(join(etc, "torn/dist/tsconfig.tsbuildinfo"))).toBe(false);
  });
});

describe("the backports suite", () => {
  it("takes mirror and keyring from a deb822 file, passing over security and disabled stanzas", () => {
    source(
      "debian.sources",
      "Types: deb\nURIs: http://off/debian\nSuites: bookworm\nComponents: main\nEnabled: no\n\nTypes: deb\nURIs: http://mirror/security\nSuites: bookworm-security\nComponents: main\n\n" +
        "Types: deb\n# a comment\nURIs: http://mirror/debian\nSuites: bookworm bookworm-updates\nComponents: main\nSigned-By: /usr/share/keyrings/archive.gpg\n",
    );
    expect(backports()).toEqual({
      status: 0,
      stdout:
        "deb [signed-by=/usr/share/keyrings/archive.gpg] http://mirror/debian bookworm-backports main\n",
    });
  });

  it("takes them from a one-line file, with its options", () => {
    source(
      "sources.list",
      "# deb http://old/debian bookworm main\ndeb [arch=amd64 signed-by=/k.gpg trusted=yes]   http://mirror/debian/ bookworm main contrib # here\n",
    );
    expect(backports().stdout).toBe(
      "deb [signed-by=/k.gpg trusted=yes] http://mirror/debian/ bookworm-backports main\n",
    );
  });

  it("uses the default keyring where none is named or the key stands in the file itself", () => {
    source(
      "a.sources",
      "Types: deb\nURIs: http://m/debian\nSuites: bookworm\nComponents: main\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n",
    );
    expect(backports().stdout).toBe("deb [signed-by=/default.gpg] http://m/debian bookworm-backports main\n");
  });

  it("is not added twice", () => {
    source("sources.list", "deb http://m/debian bookworm main\n");
    source("other.list", "deb [signed-by=/k.gpg] http://m/debian bookworm-backports main contrib\n");
    expect(backports()).toEqual({ status: 0, stdout: "" });
  });

  it("is refused where apt names no archive of the release to go by", () => {
    source(
      "x.list",
      "deb cdrom:[Debian]/ bookworm main\ndeb http://m/ubuntu noble main\ndeb http://m/tools nodistro main\n",
    );
    expect(backports()).toEqual({ status: 1, stdout: "" });
  });

  it("is refused without any apt configuration", () => {
    expect(backports()).toEqual({ status: 1, stdout: "" });
  });
});

describe("versions", () => {
  it.each([
    ["runsc_date", "runsc version 0.0~20240729.0\nspec: 1.0.2-dev\n", "20240729\n"],
    ["runsc_date", "runsc version release-20250512.0\n", "20250512\n"],
    ["runsc_date", "runsc version HEAD\n", ""],
    ["go_minor", "go version go1.23.5 linux/amd64\n", "23\n"],
    ["go_minor", "go version go1.19 linux/arm64\n", "19\n"],
    ["go_minor_needed", "module x\n\ngo 1.23\n\ntoolchain go1.25.0\n", "23\n"],
    ["node_major", "v20.20.2\n", "20\n"],
  ])("%s reads %j", (reader, input, expected) => {
    expect(bash("versions.sh", reader, input).stdout).toBe(expected);
  });
});

describe("say", () => {
  it("writes spans as people read them, and quietly shows output only of what fails", () => {
    expect(bash("say.sh", "spent 4200; echo; spent 65000").stdout).toBe("4.2 s\n1 min 5 s");
    expect(bash("say.sh", "quietly x echo hello").stdout).toBe("");
    expect(bash("say.sh", "quietly x sh -c 'exit 7' || echo $?").stdout).toBe("7\n");
  });
});

describe("the scripts", () => {
  it.each(["quickstart", "check"])(
    "bin/%s refuses an unknown option with exit code 2 and shows how it is used",
    (script) => {
      const { status, stderr } = spawnSync("bash", [join(root, "bin", script), "--nonsense"], {
        encoding: "utf8",
      });
      expect(status).toBe(2);
      expect(stderr).toContain("Usage:");
    },
  );

  it("the layer check finds an upward import, an unlisted package and a way around", async () => {
    const checkout = join(etc, "checkout");
    const file = (path: string, text: string): void => {
      mkdirSync(dirname(join(checkout, path)), { recursive: true });
      writeFileSync(join(checkout, path), text);
    };
    file("package.json", JSON.stringify({ workspaces: ["protocol", "server"] }));
    file("protocol/package.json", JSON.stringify({ dependencies: { zod: "1" } }));
    file("server/package.json", JSON.stringify({ dependencies: {} }));
    file(
      "protocol/src/a.ts",
      'import { z } from "zod";\n// import "@torpor/host"\n/** import "x" */\nimport { x } from "./b.ts";\n',
    );
    file("server/src/a.ts", 'import type { Machine } from "@torpor/protocol";\n');
    const script = join(root, "bin", "lib", "check-layers.mjs");
    expect(execFileSync(process.execPath, [script, checkout], { encoding: "utf8" })).toContain(
      "every arrow points down",
    );
    file(
      "protocol/src/b.ts",
      'export { x } from "@torpor/server";\nimport { readFileSync } from "node:fs";\n',
    );
    file(
      "server/src/b.ts",
      'import {\n  a,\n} from "@torpor/host";\nconst x = await import("left-pad");\nimport "../../host/src/c.ts";\n',
    );
    const { status, stderr } = spawnSync(process.execPath, [script, checkout], { encoding: "utf8" });
    expect(status).toBe(1);
    expect(stderr.trim().split("\n")).toHaveLength(5);
  });

  it("Go tests are counted, with those of a package that does not build as one failure", () => {
    const events = [
      { Action: "pass", Package: "p", Test: "TestA" },
      { Action: "skip", Package: "p", Test: "TestB" },
      { Action: "output", Package: "p", Test: "TestC", Output: "boom\n" },
      { Action: "fail", Package: "p", Test: "TestC" },
      { Action: "fail", Package: "p" },
      { Action: "output", Package: "q", Output: "undefined: x\n" },
      { Action: "fail", Package: "q" },
    ];
    const input = `${events.map((event) => JSON.stringify(event)).join("\n")}\nnot json\n`;
    const { status, stdout } = spawnSync(process.execPath, [join(root, "bin", "lib", "count-go-tests.mjs")], {
      input,
      encoding: "utf8",
    });
    expect(status).toBe(1);
    expect(stdout).toContain("--- FAIL: p TestC\nboom");
    expect(stdout).toContain("--- FAIL: q\nundefined: x");
    expect(stdout).toContain("Go: 1 passed, 2 failed, 1 skipped");
  });

  it("the end of a run adds up its steps and names what failed, a step that counted nothing included", () => {
    const counts = mkdtempSync(join(tmpdir(), "torpor-counts-"));
    try {
      const failures = [{ name: "a.test.ts > breaks", message: `expected 1\n\n  to be 2\nthird\nfourth` }];
      writeFileSync(
        join(counts, "unit.json"),
        JSON.stringify({ passed: 3, failed: 1, skipped: 0, failures }),
      );
      writeFileSync(join(counts, "go.json"), JSON.stringify({ passed: 2, failed: 0, skipped: 1 }));
      const { stdout } = spawnSync(
        process.execPath,
        [join(root, "bin", "lib", "sum-test-counts.mjs"), counts, "go", "unit", "system"],
        { encoding: "utf8" },
      );
      expect(stdout.split("\n")).toEqual([
        "the step 'system' ended without counting its tests: one failure",
        "failed in unit: a.test.ts > breaks",
        "    expected 1",
        "      to be 2",
        "    third",
        "5 passed, 2 failed, 1 skipped",
        "",
      ]);
    } finally {
      rmSync(counts, { recursive: true });
    }
  });
});
