import {
  linkSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { giveFolder } from "../src/drop-privileges.ts";

test.runIf(process.getuid?.() === 0)(
  "a folder is given with what lies in it, and nothing that a link in it points to or that has another name",
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
    mkdirSync(join(given, "uploads"));
    writeFileSync(shadow, "root's");
    writeFileSync(join(given, "server.sqlite"), "");
    linkSync(shadow, join(given, "another-name"));
    symlinkSync(shadow, join(given, "to-file"));
    symlinkSync(etc, join(given, "to-folder"));
    giveFolder(given, { uid: 12_345, gid: 12_345 });
    for (const path of [given, join(given, "server.sqlite"), join(given, "uploads")])
      expect(lstatSync(path), path).toMatchObject({ uid: 12_345, gid: 12_345 });
    for (const path of [shadow, etc, join(given, "another-name")])
      expect(statSync(path), path).toMatchObject({ uid: 0, gid: 0 });
  },
);
