import { expect, test } from "vitest";
import { redactJson, SecretValues } from "../src/secret-values.ts";

test("held values are replaced wherever they stand, until they are let go by all who hold them", () => {
  const secrets = new SecretValues();
  const first = secrets.hold(["hunter2-hunter2"]);
  const second = secrets.hold(["hunter2-hunter2", "hunter2"]);
  expect(secrets.redact("a hunter2-hunter2 b hunter2 c")).toBe("a [redacted] b [redacted] c");
  second();
  second(); // again: nothing
  expect(secrets.redact("a hunter2-hunter2 b hunter2")).toBe("a [redacted] b hunter2");
  first();
  expect(secrets.redact("hunter2-hunter2")).toBe("hunter2-hunter2");
});

test("values with quotes, line breaks and $ are found in JSON too, and in JSON within JSON", () => {
  const value = 'pa"ss\n$& \\ ünïcode';
  const secrets = new SecretValues();
  secrets.hold([value]);
  const once = JSON.stringify({ message: `failed: ${value}` });
  expect(JSON.parse(secrets.redact(once))).toEqual({ message: "failed: [redacted]" });
  const twice = JSON.stringify({ line: once });
  expect(secrets.redact(twice)).not.toContain("pa");
});

test("patterns hold always, and a value of three characters never", () => {
  const secrets = new SecretValues([/tp_[A-Za-z0-9]{40}/g]);
  secrets.hold(["abc"]);
  const key = `tp_${"k".repeat(40)}`;
  expect(secrets.redact(`abc ${key} ${key}.`)).toBe("abc [redacted] [redacted].");
});

test("a value of JSON is redacted string by string", () => {
  expect(redactJson({ a: ["x", { b: "y x" }], c: 1, d: null }, (text) => text.replace("x", "-"))).toEqual({
    a: ["-", { b: "y -" }],
    c: 1,
    d: null,
  });
});
