import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { mendState } from "../src/driver/gvisor/mend-state.ts";
import { frames, int, uint } from "../src/driver/gvisor/state-frames.ts";

let directory: string;
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), "torpor-mend-state-"));
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const NOW_MS = 1_795_982_156_500;
const BETWEEN = { fromMs: NOW_MS - 200, toMs: NOW_MS + 200 };
const ns = (ms: number): bigint => BigInt(ms) * 1_000_000n;

/** Types by their place, from 1. */
const TYPES = [
  ["pkg/cpuid.Out", "Eax", "Ebx"],
  [
    "pkg/sentry/kernel.Timekeeper",
    "realtimeClock",
    "monotonicClock",
    "bootTime",
    "saveMonotonic",
    "saveRealtime",
  ],
  ["pkg/sentry/kernel/time.Time", "ns"],
  ["pkg/sentry/kernel.timekeeperClock", "tk", "c"],
  ["pkg/sentry/syscalls/linux.clockNanosleepRestartBlock", "c", "end", "rem"],
];
const text = (value: string): Buffer =>
  Buffer.concat([uint(value.length), Buffer.from([0, 0, 0, value.length]), Buffer.from(value)]);
const table = (types = TYPES): Buffer =>
  Buffer.concat([
    uint(2n ** 63n + 7n),
    ...types.flatMap(([name = "", ...fields]) => [
      frames(17),
      text(name),
      frames(fields.length),
      ...fields.map(text),
    ]),
  ]);
const time = (value: bigint): Buffer => Buffer.concat([frames(1), int(value)]);
const NOISE = Buffer.concat([
  frames(0x0b, 0x0f, 0x05),
  time(ns(NOW_MS)),
  frames(0x0b, 0x05),
  time(ns(NOW_MS)),
]);

const MONOTONIC_MS = 900_000;
/** A machine that has run for a quarter of an hour and then slept for a day, say. */
const keeper = (bootMs = NOW_MS - 90_000_000, savedNs = ns(NOW_MS)): Buffer =>
  Buffer.concat([
    frames(9, 11, 2, 13, 5, 6, 0x25, 0, 6, 0x26, 0, 11, 3),
    time(ns(bootMs)),
    time(ns(MONOTONIC_MS)),
    time(savedNs),
    frames(0x02, 0x05),
  ]);
/** One that sleeps on the clock until then. */
const sleeper = (clock: number, end: Buffer, rem = [2, 0xb0, 0x03]): Buffer =>
  Buffer.concat([
    frames(7, 11, 5, 13, 3, 14, 1, 0, 4, 6, clock, 0, 11, 3, 1),
    end,
    frames(...rem),
    frames(2),
  ]);
const FAR_AHEAD_NS = 4_600_000_000_000_000_000n;

async function hold(state: Buffer): Promise<{ held: boolean; state: Buffer }> {
  const path = join(directory, "state");
  writeFileSync(path, state);
  return { held: await mendState(path, BETWEEN), state: readFileSync(path) };
}

test("the saved real time, found once, is set far ahead, and nothing else is changed", async () => {
  const after = await hold(Buffer.concat([table(), NOISE, keeper(), NOISE]));
  expect(after.held).toBe(true);
  expect(after.state).toEqual(Buffer.concat([table(), NOISE, keeper(undefined, FAR_AHEAD_NS), NOISE]));
});

test("relative sleeps on the real-time clock become sleeps on the monotonic one with as much time left; others stay", async () => {
  const realtime = [int(ns(NOW_MS + 30_000)), int(ns(NOW_MS - 5)), int(2n ** 63n - 1n)];
  const monotonic = [
    int(ns(MONOTONIC_MS + 30_000), 9),
    int(ns(MONOTONIC_MS - 5), 9),
    int(2n ** 63n - 1n - ns(NOW_MS - MONOTONIC_MS), 10),
  ];
  const others = Buffer.concat([
    sleeper(0x26, int(ns(MONOTONIC_MS + 5))), // on the monotonic clock as it is
    sleeper(0x27, realtime[0] ?? NOISE),
    sleeper(0x25, realtime[0] ?? NOISE, [3, 1]),
    text("a name that a guest made up"),
  ]);
  const state = (clock: number, ends: Buffer[], savedNs?: bigint): Buffer =>
    Buffer.concat([
      table(),
      ...ends.flatMap((end) => [sleeper(clock, end), NOISE, sleeper(clock, end, [5])]),
      keeper(undefined, savedNs),
      others,
    ]);
  const after = await hold(state(0x25, realtime));
  expect(after.held).toBe(true);
  expect(after.state).toEqual(state(0x26, monotonic, FAR_AHEAD_NS));
});

test("sleeps that are kept in another way are left alone", async () => {
  const types = TYPES.map((type) => (type.at(-1) === "rem" ? [...type.slice(0, -1), "left"] : type));
  const sleeping = sleeper(0x25, int(ns(NOW_MS + 30_000)));
  const after = await hold(Buffer.concat([table(types), sleeping, keeper()]));
  expect(after.state).toEqual(Buffer.concat([table(types), sleeping, keeper(undefined, FAR_AHEAD_NS)]));
});

test.each([
  ["another runtime's structure", Buffer.concat([table(TYPES.slice(2)), NOISE, keeper()])],
  ["a structure with other fields", Buffer.concat([table(TYPES.map((type) => [...type, "more"])), keeper()])],
  ["two that may be it", Buffer.concat([table(), keeper(), keeper()])],
  ["none", Buffer.concat([table(), NOISE])],
  ["one that ran for longer than it has been up", Buffer.concat([table(), keeper(NOW_MS - 10_000)])],
  ["a file that is cut off in it", Buffer.concat([table(), keeper()]).subarray(0, -30)],
  ["a file that is cut off in the types", table().subarray(0, -20)],
  ["a file without the number before the types", Buffer.concat([table().subarray(50), keeper()])],
  ["an empty file", Buffer.alloc(0)],
])("of %s nothing is changed", async (_what, state) => {
  expect(await hold(state)).toEqual({ held: false, state });
});

test("a time that is not of the checkpoint is left alone", async () => {
  const path = join(directory, "other");
  writeFileSync(path, Buffer.concat([table(), keeper()]));
  expect(await mendState(path, { fromMs: NOW_MS + 1, toMs: NOW_MS + 5 })).toBe(false);
});

const EPOLL_TYPES = [
  ...TYPES,
  [
    "pkg/sentry/vfs.epollInterest",
    "epoll",
    "key",
    "waiter",
    "mask",
    "ready",
    "epollInterestEntry",
    "readySeq",
    "userData",
  ],
  ["pkg/sentry/vfs.epollInterestEntry", "next", "prev"],
  ["pkg/sentry/vfs.epollInterestList", "head", "tail"],
];
const NONE = frames(5);
const reference = (...root: number[]): Buffer => frames(6, ...root, 0);
/** A descriptor: its mask, whether it is on the list, its neighbours there. */
const interest = (ready: Buffer, next: Buffer, prev: Buffer): Buffer =>
  Buffer.concat([frames(11, 6, 13, 8, 6, 0x20, 0, 2, 0x99, 0x01), ready, frames(11, 7, 13, 2), next, prev]);
const list = (head: Buffer, tail: Buffer): Buffer =>
  Buffer.concat([frames(11, 8, 13, 2), head, tail, frames(2, 7)]);
const ON = frames(0, 1);
const OFF = frames(0, 0);

test("lists of ready descriptors are emptied in the image, and every descriptor says that it is on none", async () => {
  const state = (onList: Buffer, head: Buffer, tail: Buffer): Buffer =>
    Buffer.concat([
      table(EPOLL_TYPES),
      interest(onList, reference(0x21), NONE),
      interest(NONE, NONE, reference(0xa2, 0x04)),
      NOISE,
      list(head, tail),
      list(NONE, NONE),
      interest(onList, NONE, NONE),
    ]);
  const after = await hold(state(ON, reference(0x21), reference(0xa2, 0x04)));
  expect(after.held).toBe(false); // no clocks in this one: each is mended by itself
  expect(after.state).toEqual(state(OFF, reference(0), reference(0x80, 0)));
});

test("descriptors that are kept in another way are left alone", async () => {
  const types = EPOLL_TYPES.map((type) => (type.at(-1) === "userData" ? [...type, "more"] : type));
  const state = Buffer.concat([
    table(types),
    interest(ON, NONE, NONE),
    list(reference(0x21), reference(0x21)),
  ]);
  expect((await hold(state)).state).toEqual(state);
});
