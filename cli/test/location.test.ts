import { describe, expect, it } from "vitest";
import { guestBasename, guestJoin, parseCopy, parseLocation } from "../src/copy/location.ts";
import { UsageError } from "../src/failure.ts";

const ID = "sabcdefghijkmnpqrstuvwxyz2";

describe("a location of cp", () => {
  it.each([
    [`${ID}:/workspace/a b`, { on: "sandbox", id: ID, path: "/workspace/a b" }],
    [`${ID}:~/notes`, { on: "sandbox", id: ID, path: "~/notes" }],
    [`${ID}:/a:b`, { on: "sandbox", id: ID, path: "/a:b" }],
    ["-", { on: "pipe" }],
    ["file.txt", { on: "host", path: "file.txt" }],
    ["C:x", { on: "host", path: "C:x" }],
    ["short:/x", { on: "host", path: "short:/x" }],
    [`./${ID}:/x`, { on: "host", path: `./${ID}:/x` }],
    ["/tmp/a:b", { on: "host", path: "/tmp/a:b" }],
  ])("%s is read", (text, expected) => {
    expect(parseLocation(text)).toEqual(expected);
  });

  it.each(["", `${ID}:`, `${ID}:relative`, `${ID}:./x`, `${ID}:~other/x`])("'%s' is refused", (text) => {
    expect(() => parseLocation(text)).toThrow(UsageError);
  });

  it("must be in a sandbox on exactly one side", () => {
    expect(() => parseCopy("a", "b")).toThrow(/neither/);
    expect(() => parseCopy(`${ID}:/a`, `${ID}:/b`)).toThrow(/both/);
    expect(parseCopy("-", `${ID}:/b`)[0]).toEqual({ on: "pipe" });
  });
});

it("names inside a sandbox are joined and taken apart as paths are", () => {
  expect(["/a/b", "/a/b/", "/", "/a/.", "~", "~/x"].map(guestBasename)).toEqual(["b", "b", "", "", "", "x"]);
  expect(guestJoin("/", "a")).toBe("/a");
  expect(guestJoin("/w/", "a")).toBe("/w/a");
  expect(guestJoin("/w", "a")).toBe("/w/a");
});
