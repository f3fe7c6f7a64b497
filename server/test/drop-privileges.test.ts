import { lstatSync, mkdirSync, mkdtempSync, rmSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { giveFolder } from "../src/drop-privileges.ts";

test.runIf(process.getuid?.() === 0)(
  "a folder is given with what lies in it, and nothing that a link in it points to",
  () => {
    const directory = mkdtempSync(join(tmpdir(), "torpor-given-"));
    onTestFinished(() => rmSync(directory, { recursive: true }));
    const [given, shadow, etc] = ["given", "shadow", "etc"].map((name) => join(directory, name)) as [
      string,
      string,
      string,
    ];
    mkdirSync(given);
    mkdirSync(etc);
    writeFileSync(shadow, "root's");
    writeFileSync(join(given, "server.sqlite"), "");
    symlinkSync(shadow, join(given, "to-file"));
    symlinkSync(etc, join(given, "to-folder"));
    giveFolder(given, { uid: 12_345, gid: 12_345 });
    for (const path of [given, ...["server.sqlite", "to-file", "to-folder"].map((name) => join(given, name))])
      expect(lstatSync(path), path).toMatchObject({ uid: 12_345, gid: 12_345 });
    for (const path of [shadow, etc]) expect(statSync(path), path).toMatchObject({ uid: 0, gid: 0 });
  },
);
