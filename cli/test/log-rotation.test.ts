import {
  appendFileSync,
  closeSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { FakeClock } from "@torpor/base";
import { afterEach, beforeEach, expect, it } from "vitest";
import { keepLogsBounded, LOG_LIMIT_BYTES, rotateLog } from "../src/instance/log-rotation.ts";
import { logTail } from "../src/instance/log-tail.ts";

let directory: string;
beforeEach(() => (directory = mkdtempSync(join(tmpdir(), "torpor-logs-"))));
afterEach(() => rmSync(directory, { recursive: true, force: true }));

it("a log that has grown too large is set aside while its writer goes on undisturbed", () => {
  const path = join(directory, "x.log");
  const writer = openSync(path, "a");
  writeSync(writer, "old ".repeat(30));
  expect(rotateLog(path, 100)).toBe(true);
  writeSync(writer, "new\n");
  closeSync(writer);
  expect(readFileSync(path, "utf8")).toBe("new\n");
  expect(readFileSync(`${path}.1`, "utf8")).toBe("old ".repeat(30));
  expect(rotateLog(path, 100)).toBe(false);
  expect(rotateLog(join(directory, "none"), 100)).toBe(false);
});

it("logs are looked at from time to time, and a failure is reported and tried again", () => {
  const path = join(directory, "x.log");
  const clock = new FakeClock();
  const errors: string[] = [];
  writeFileSync(path, Buffer.alloc(LOG_LIMIT_BYTES + 1));
  writeFileSync(join(directory, "held"), "");
  const stop = keepLogsBounded([path], (failed) => errors.push(failed), clock);
  expect(statSync(path).size).toBe(0);
  appendFileSync(path, Buffer.alloc(LOG_LIMIT_BYTES + 1));
  clock.advance(6_000);
  expect(statSync(path).size).toBe(0);
  stop();
  appendFileSync(path, Buffer.alloc(LOG_LIMIT_BYTES + 1));
  clock.advance(60_000);
  expect(statSync(path).size).toBe(LOG_LIMIT_BYTES + 1);
  expect(errors).toEqual([]);
});

it("the end of a log is whole lines", () => {
  const path = join(directory, "x.log");
  writeFileSync(path, "first line\nsecond\nthird\n");
  expect(logTail(path, 2)).toEqual(["second", "third"]);
  expect(logTail(path, 10, 10)).toEqual(["third"]);
  expect(logTail(join(directory, "none"), 5)).toEqual([]);
});
