import fc from "fast-check";
import { isIPv4 } from "node:net";
import { describe, expect, test } from "vitest";
import { NEVER_REACHABLE } from "@torpor/protocol";
import { instanceNames } from "../src/instance.ts";
import { addressBlock, BLOCK_COUNT, MAX_SLOT, routeTouchesBlock } from "../src/network/address-plan.ts";

function toNumber(address: string): number {
  return address.split(".").reduce((value, part) => value * 256 + Number(part), 0);
}
function contains(cidr: string, address: string): boolean {
  const [base = "", bits = ""] = cidr.split("/");
  const size = 2 ** (32 - Number(bits));
  return Math.floor(toNumber(base) / size) === Math.floor(toNumber(address) / size);
}

const anyBlock = fc.integer({ min: 0, max: BLOCK_COUNT - 1 });
const anySlot = fc.integer({ min: 1, max: MAX_SLOT });

describe("the address plan", () => {
  test("starts where the benchmarking range starts", () => {
    expect(addressBlock(1)).toMatchObject({
      cidr: "198.18.16.0/20",
      hostAddress: "198.18.31.253",
      routerAddress: "198.18.31.254",
    });
    expect(addressBlock(0).slotAddress(1)).toBe("198.18.0.1");
  });

  test("gives every slot of every block an address of its own, inside the block and beside the router's two", () => {
    fc.assert(
      fc.property(anyBlock, anySlot, anyBlock, anySlot, (blockA, slotA, blockB, slotB) => {
        const [a, b] = [addressBlock(blockA), addressBlock(blockB)];
        const address = a.slotAddress(slotA);
        expect(isIPv4(address)).toBe(true);
        expect(contains(a.cidr, address)).toBe(true);
        expect([a.hostAddress, a.routerAddress]).not.toContain(address);
        expect(address === b.slotAddress(slotB)).toBe(blockA === blockB && slotA === slotB);
        expect(contains(b.cidr, address)).toBe(blockA === blockB);
      }),
    );
  });

  test("refuses slots and blocks that do not exist", () => {
    for (const slot of [0, -1, MAX_SLOT + 1, 1.5, Number.NaN])
      expect(() => addressBlock(0).slotAddress(slot)).toThrow(RangeError);
    for (const block of [-1, BLOCK_COUNT, 0.5]) expect(() => addressBlock(block)).toThrow(RangeError);
  });

  test.each([
    ["198.18.0.0/30", true],
    ["198.18.0.2", true],
    ["198.18.0.0/20", true],
    ["198.18.0.0/16", true],
    ["198.18.0.0/15", true],
    ["198.18.16.0/20", false],
    ["198.19.0.0/16", false],
    ["0.0.0.0/0", false],
    ["128.0.0.0/1", false],
    ["default", false],
    ["10.0.0.0/8", false],
  ])("counts a block as taken by a route to %s: %s", (destination, expected) => {
    expect(routeTouchesBlock(destination, addressBlock(0))).toBe(expected);
  });

  test("denies every address of its own, so that no sandbox reaches another by any of them", () => {
    fc.assert(
      fc.property(anyBlock, anySlot, (block, slot) => {
        const addresses = addressBlock(block);
        for (const address of [addresses.hostAddress, addresses.routerAddress, addresses.slotAddress(slot)]) {
          expect(NEVER_REACHABLE.some((cidr) => contains(cidr, address))).toBe(true);
        }
      }),
    );
  });

  test.each([
    "10.1.2.3",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",
    "127.0.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "0.0.0.0",
    "224.0.0.1",
    "255.255.255.255",
  ])("denies %s", (address) => {
    expect(NEVER_REACHABLE.some((cidr) => contains(cidr, address))).toBe(true);
  });

  test.each([
    "203.0.113.10",
    "8.8.8.8",
    "172.15.255.255",
    "172.32.0.1",
    "192.167.255.255",
    "198.17.255.255",
    "198.20.0.1",
    "223.255.255.255",
  ])("does not deny %s", (address) => {
    expect(NEVER_REACHABLE.some((cidr) => contains(cidr, address))).toBe(false);
  });
});

describe("the names of an instance", () => {
  test("differ between state directories and are the same every time", () => {
    fc.assert(
      fc.property(fc.string({ minLength: 1 }), fc.string({ minLength: 1 }), (a, b) => {
        expect(instanceNames(a).tag).toBe(instanceNames(a).tag);
        if (a !== b) expect(instanceNames(a).tag).not.toBe(instanceNames(b).tag);
      }),
    );
  });

  test("fit where they are used: links have 15 characters, tables no hyphen", () => {
    const names = instanceNames("/var/lib/torpor");
    expect(names.uplink.length).toBeLessThanOrEqual(15);
    expect(names.nftTable).toMatch(/^[a-z_][a-z0-9_]*$/);
  });

  test("recognise their own slots and nobody else's", () => {
    const names = instanceNames("/var/lib/torpor");
    const other = instanceNames("/somewhere/else");
    fc.assert(
      fc.property(anySlot, (slot) => {
        expect(names.slotNetnsPattern.exec(names.slotNetns(slot))?.[1]).toBe(String(slot));
        expect(names.slotNetnsPattern.test(other.slotNetns(slot))).toBe(false);
      }),
    );
    for (const name of [names.routerNetns, `${names.slotNetns(1)}0x`, `x${names.slotNetns(1)}`])
      expect(names.slotNetnsPattern.test(name)).toBe(false);
  });
});
