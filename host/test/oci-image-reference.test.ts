import { expect, test } from "vitest";
import { listedRegistry, parseImageReference } from "../src/oci/image-reference.ts";

const DIGEST = `sha256:${"a".repeat(64)}`;

test("a reference is taken apart as container tools do it", () => {
  for (const [text, registry, repository, tag, digest] of [
    ["python", undefined, "python", "latest", undefined],
    ["python:3.12", undefined, "python", "3.12", undefined],
    ["library/python:3.12", undefined, "python", "3.12", undefined],
    ["team/app", undefined, "team/app", "latest", undefined],
    ["localhost/app:1", "localhost", "app", "1", undefined],
    ["localhost:5000/app", "localhost:5000", "app", "latest", undefined],
    ["registry.example.com/team/app:1", "registry.example.com", "team/app", "1", undefined],
    ["Registry/app", "Registry", "app", "latest", undefined],
    ["[::1]:5000/app", "[::1]:5000", "app", "latest", undefined],
    [`app@${DIGEST}`, undefined, "app", undefined, DIGEST],
    [`app:1@${DIGEST}`, undefined, "app", undefined, DIGEST],
  ] as const)
    expect(parseImageReference(text)).toMatchObject({ text, registry, repository, tag, digest });
});

test("what is no reference is refused, and so cannot become an option, a path or another host", () => {
  for (const text of [
    "",
    "--help",
    "../../etc",
    "/etc/passwd",
    "a//b",
    "app:",
    "App",
    "app@sha256:1",
    "user@host/app",
    "evil.example.com#registry/app",
    "host:99999999/app",
    "app\nx",
    "app:1 --debug",
    "a".repeat(600),
  ])
    expect(() => parseImageReference(text), text).toThrow(/is no image's name/);
});

test("a registry is asked without the tag where there is a digest, and else for what was said", () => {
  const asked = (text: string) => parseImageReference(text).asked;
  expect(asked(`python:3.12@${DIGEST}`)).toBe(`python@${DIGEST}`);
  expect(asked(`localhost:5000/library/app:1@${DIGEST}`)).toBe(`localhost:5000/library/app@${DIGEST}`);
  for (const text of ["python", "library/python:3.12", `localhost:5000/app@${DIGEST}`])
    expect(asked(text)).toBe(text);
});

test("the default registry is the same in an operator's list, named in front or not", () => {
  for (const text of ["python:3.12", "docker.io/library/python:3.12", "index.docker.io/team/app"])
    expect(listedRegistry(parseImageReference(text).registry)).toBe("default");
  expect(listedRegistry(parseImageReference("registry.example.com/python").registry)).toBe(
    "registry.example.com",
  );
});
