import { expect, test } from "vitest";
import type { Headroom } from "../src/machine/capacity.ts";
import { ImageRoom } from "../src/machine/image-room.ts";

const MIB = 1024 ** 2;
const GIB_IN_MIB = 1024;

test("images that are read at once leave the disk below its watermark, and one that has ended gives its room back", () => {
  // 100 GiB, of which 50 are used: 40 until the watermark
  const free: Headroom = {
    memoryMb: 1,
    diskMb: 50 * GIB_IN_MIB,
    diskUsedPercent: 50,
    diskWatermarkPercent: 90,
  };
  const room = new ImageRoom(() => free);
  const first = room.reserve("a", 20 * GIB_IN_MIB);
  expect(first.bytes).toBe(10 * GIB_IN_MIB * MIB);
  const second = room.reserve("b", 20 * GIB_IN_MIB);
  expect(second.bytes).toBe(5 * GIB_IN_MIB * MIB);
  expect(2 * (first.bytes + second.bytes)).toBeLessThan(40 * GIB_IN_MIB * MIB);
  first.release();
  first.release();
  expect(room.reserve("c", 96).bytes).toBe(96 * MIB);
  expect(room.reserve("d", 20 * GIB_IN_MIB).bytes).toBe(Math.floor((30 * GIB_IN_MIB - 192) / 4) * MIB);
});

test("no image is begun, and none goes on, above the watermark or without room below it", () => {
  const free: Headroom = { memoryMb: 1, diskMb: 50_000, diskUsedPercent: 89.9, diskWatermarkPercent: 90 };
  const room = new ImageRoom(() => free);
  room.check("a");
  expect(() => room.reserve("a", 20_480)).not.toThrow();
  expect(() => room.reserve("a", 20_480)).toThrow(/image 'a' cannot be built from: .* nearly full/);
  expect(room.isTight).toBe(false);
  free.diskUsedPercent = 90;
  expect(room.isTight).toBe(true);
  expect(() => room.check("a")).toThrow(/image 'a' cannot be built from: the host's disk is 90% full/);
  expect(() => room.reserve("a", 96)).toThrow(expect.objectContaining({ code: "no_space" }));
});
