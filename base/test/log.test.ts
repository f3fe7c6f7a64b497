import { expect, test } from "vitest";
import { createLog } from "../src/index.ts";

function lineOf(write: (log: ReturnType<typeof createLog>) => void): { text: string; line: unknown } {
  let text = "";
  write(createLog({ name: "test", redact: (line) => ((text += line), "") }));
  return { text, line: JSON.parse(text) };
}

test("an error's message stands in its line once, with its facts and where it came from", () => {
  const cause = new Error("no space is left");
  const error = Object.assign(new Error("packing failed: no space is left", { cause }), { exitCode: 3 });
  const { text, line } = lineOf((log) => log.error({ op: "pack", err: error }));
  expect(text.split("no space is left")).toHaveLength(2);
  expect(line).toMatchObject({
    op: "pack",
    msg: "packing failed: no space is left",
    err: {
      type: "Error",
      exitCode: 3,
      stack: expect.stringMatching(/^\s+at /) as string,
      cause: { type: "Error" },
    },
  });
});

test("a line with a message of its own tells the error's beside it, and causes that say something else", () => {
  const error = new Error("packing failed", { cause: new Error("no space is left") });
  expect(lineOf((log) => log.error({ op: "pack", err: error }, "will be tried again")).line).toMatchObject({
    msg: "will be tried again",
    err: { message: "packing failed", cause: { message: "no space is left" } },
  });
});

test("the errors that one gathers are told, each with its cause", () => {
  const full = Object.assign(new Error("no space is left"), { code: "ENOSPC" });
  const error = new AggregateError(
    [new Error("packing failed", { cause: full }), "a word"],
    "2 steps failed",
  );
  expect(lineOf((log) => log.error({ op: "drain", err: error })).line).toMatchObject({
    msg: "2 steps failed",
    err: {
      type: "AggregateError",
      errors: [
        { message: "packing failed", cause: { message: "no space is left", code: "ENOSPC" } },
        "a word",
      ],
    },
  });
});

test("of what is behind an error no facts are told, which may be secret", () => {
  const secret = { key: "hush", env: { TOKEN: "hush" }, answer: { key: "hush" } };
  const cause = Object.assign(new Error("refused", { cause: secret }), secret);
  const error = Object.assign(new AggregateError([cause], "failed", { cause }), { env: "hush", exitCode: 1 });
  const { text, line } = lineOf((log) => log.error({ op: "start", err: error }));
  expect(text).not.toContain("hush");
  expect(line).toMatchObject({
    err: { exitCode: 1, cause: { message: "refused", cause: "[object Object]" } },
  });
});

test("errors that are each other's cause are told once each", () => {
  const one = new Error("one");
  const two = new Error("two", { cause: one });
  one.cause = two;
  expect(lineOf((log) => log.error({ op: "x", err: one })).line).toMatchObject({
    msg: "one",
    err: { cause: { message: "two", cause: "(told above)" } },
  });
});
