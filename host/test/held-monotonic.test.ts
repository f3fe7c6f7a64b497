import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { holdMonotonic } from "../src/driver/gvisor/held-monotonic.ts";

let directory: string;
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), "torpor-held-monotonic-"));
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const NOW_MS = 1_795_982_156_500;
const BETWEEN = { fromMs: NOW_MS - 200, toMs: NOW_MS + 200 };
const ns = (ms: number): bigint => BigInt(ms) * 1_000_000n;

const frame = (...bytes: number[]): Buffer => Buffer.from(bytes.flatMap((byte) => [0, 0, 0, 1, byte]));
const text = (value: string): Buffer =>
  Buffer.concat([frame(value.length), Buffer.from([0, 0, 0, value.length]), Buffer.from(value)]);
/** A signed number with its type. */
function int(value: bigint): Buffer {
  const bytes: number[] = [1];
  let rest = value << 1n;
  for (; rest >= 0x80n; rest >>= 7n) bytes.push(Number(rest & 0x7fn) | 0x80);
  return frame(...bytes, Number(rest));
}

const TYPES = Buffer.concat([
  text("pkg/sentry/kernel.Timekeeper"),
  frame(5),
  ...["realtimeClock", "monotonicClock", "bootTime", "saveMonotonic", "saveRealtime"].map(text),
]);
const NOISE = Buffer.concat([frame(0x0b, 0x0f, 0x05), int(ns(NOW_MS)), frame(0x0b, 0x05), int(ns(NOW_MS))]);
/** A machine that has run for a quarter of an hour and then slept for a day, say. */
const keeper = (bootMs = NOW_MS - 90_000_000): Buffer =>
  Buffer.concat([frame(0x0b, 0x07), int(ns(bootMs)), int(ns(900_000)), int(ns(NOW_MS)), frame(0x02)]);

async function hold(state: Buffer): Promise<{ held: boolean; state: Buffer }> {
  const path = join(directory, "state");
  writeFileSync(path, state);
  return { held: await holdMonotonic(path, BETWEEN), state: readFileSync(path) };
}

test("the saved real time, found once, is set far ahead, and nothing else is changed", async () => {
  const state = Buffer.concat([TYPES, NOISE, keeper(), NOISE]);
  const after = await hold(state);
  expect(after.held).toBe(true);
  expect(after.state).toEqual(
    Buffer.concat([
      TYPES,
      NOISE,
      keeper().subarray(0, -frame(0x02).length - int(ns(NOW_MS)).length),
      int(4_600_000_000_000_000_000n),
      frame(0x02),
      NOISE,
    ]),
  );
});

test.each([
  ["another runtime's structure", Buffer.concat([NOISE, keeper()])],
  ["two that may be it", Buffer.concat([TYPES, keeper(), keeper()])],
  ["none", Buffer.concat([TYPES, NOISE])],
  ["one that ran for longer than it has been up", Buffer.concat([TYPES, keeper(NOW_MS - 10_000)])],
  ["a file that is cut off in it", Buffer.concat([TYPES, keeper()]).subarray(0, -20)],
  ["an empty file", Buffer.alloc(0)],
])("of %s nothing is changed", async (_what, state) => {
  expect(await hold(state)).toEqual({ held: false, state });
});

test("a time that is not of the checkpoint is left alone", async () => {
  const path = join(directory, "other");
  writeFileSync(path, Buffer.concat([TYPES, keeper()]));
  expect(await holdMonotonic(path, { fromMs: NOW_MS + 1, toMs: NOW_MS + 5 })).toBe(false);
});
