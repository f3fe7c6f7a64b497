import { Readable } from "node:stream";
import { type Sandbox, TorporError } from "@torpor/sdk";
import { expect, it } from "vitest";
import { StdinFeed } from "../src/terminal/feed-stdin.ts";

/** Feeds a command whose input is refused so. */
function fedTo(code: string, details: Record<string, unknown>): Promise<void> {
  const refusal = new TorporError("it was refused", { code, details });
  const sandbox = { writeStdin: () => Promise.reject(refusal) } as unknown as Sandbox;
  return new StdinFeed(Readable.from([Buffer.from("input")])).run(sandbox, "e1");
}

it("leaves a command alone that has closed its standard input or has ended", async () => {
  await fedTo("conflict", { stdin: "closed" });
  await fedTo("process_not_found", {});
});

it("does not take any other conflict for that: input that was not delivered is a failure", async () => {
  await expect(fedTo("conflict", {})).rejects.toThrow("it was refused");
});
