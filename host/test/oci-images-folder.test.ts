import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { parseImageReference } from "../src/oci/image-reference.ts";
import { ImagesFolder } from "../src/oci/images-folder.ts";

let dir: string;
beforeEach(() => (dir = mkdtempSync(join(tmpdir(), "torpor-images-"))));
afterEach(() => rmSync(dir, { recursive: true }));

function layout(name: string, ...names: (string | undefined)[]): string {
  const path = join(dir, name);
  mkdirSync(path);
  const manifests = names.map((ref, index) => ({
    digest: `sha256:${String(index).repeat(64)}`,
    ...(ref === undefined ? {} : { annotations: { "org.opencontainers.image.ref.name": ref } }),
  }));
  writeFileSync(join(path, "index.json"), JSON.stringify({ manifests }));
  return path;
}

const find = async (image: string) => await new ImagesFolder(dir).find(parseImageReference(image));

test("a layout is found by what it is called, with `_` for `:` and `/`, and by what names the image inside", async () => {
  const path = layout("python_3.12", undefined);
  const team = layout("team_app:1", "1");
  const many = layout("anything", "node:22", "node:20");
  const tags = layout("golang", "1.23", "1.24");
  expect(await find("python:3.12")).toEqual({ kind: "oci", path, image: undefined });
  expect(await find("team/app:1")).toEqual({ kind: "oci", path: team, image: undefined });
  expect(await find("node:20")).toEqual({ kind: "oci", path: many, image: "node:20" });
  expect(await find("golang:1.24")).toEqual({ kind: "oci", path: tags, image: "1.24" });
  expect(await find(`other@sha256:${"1".repeat(64)}`)).toMatchObject({ kind: "oci" });
  for (const missing of ["python", "python:3.1", "app:1", "golang", "node:1"])
    expect(await find(missing)).toBeUndefined();
});

test("`latest` need not be said", async () => {
  const path = layout("alpine", undefined);
  expect(await find("alpine")).toMatchObject({ path });
  expect(await find("alpine:latest")).toMatchObject({ path });
  expect(await find("alpine:3")).toBeUndefined();
});

test("what is no image, a link to elsewhere, and a folder that is not there are none", async () => {
  const elsewhere = layout("real_1", undefined);
  symlinkSync(elsewhere, join(dir, "linked_1"));
  writeFileSync(join(dir, "text_1"), "not a tar");
  mkdirSync(join(dir, "empty_1"));
  for (const image of ["linked:1", "text:1", "empty:1"]) expect(await find(image)).toBeUndefined();
  expect(await new ImagesFolder(join(dir, "nowhere")).find(parseImageReference("a:1"))).toBeUndefined();
});
