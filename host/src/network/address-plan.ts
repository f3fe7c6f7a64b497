import { isIPv4 } from "node:net";
import { ipv4Number } from "@torpor/protocol";

/**
 * Addresses. Inside, every sandbox has the same address, so that a snapshot restores anywhere (gVisor's sentry dies
 * when it restores a connected UDP socket under another one). Outside, slot n of an instance is reached at
 * base + n. The range is 198.18.0.0/15, reserved for tests of interconnected devices (RFC 2544) and routed nowhere,
 * so that it collides with no LAN, VPN or cloud network. An instance takes one /20 of it: 4,094 slots.
 */

/** Address every guest sees as its own. */
export const GUEST_ADDRESS = "10.200.0.2";
export const GUEST_PREFIX_LENGTH = 30;
/** Address every guest sees as its gateway; the router answers for it on each link. */
export const GATEWAY_ADDRESS = "10.200.0.1";
/** Link-layer addresses are the same on every link: each is a network of its own. */
export const GUEST_MAC = "02:54:50:00:00:02";
export const GATEWAY_MAC = "02:54:50:00:00:01";

/** Largest slot number: a /20 less its network and broadcast address, less the router's two. */
export const MAX_SLOT = 4090;

/** Number of /20 blocks in 198.18.0.0/15. */
export const BLOCK_COUNT = 32;

const RANGE_PREFIX_LENGTH = 15;
const BLOCK_PREFIX_LENGTH = 20;

export interface AddressBlock {
  /** 0 to 31. */
  index: number;
  /** `198.18.16.0/20` for block 1. */
  cidr: string;
  /** The host's end of the link to the router. */
  hostAddress: string;
  /** The router's end. */
  routerAddress: string;
  /** Outside address of a slot. */
  slotAddress(slot: number): string;
  /** The slot of an outside address; undefined when it is none's. */
  slotOf(address: string): number | undefined;
}

const BASE = (198 << 24) | (18 << 16);

function dotted(value: number): string {
  return [24, 16, 8, 0].map((shift) => (value >>> shift) & 255).join(".");
}

/** The addresses of block `index`. Slots count from 1; the last two addresses are the link to the router. */
export function addressBlock(index: number): AddressBlock {
  if (!Number.isInteger(index) || index < 0 || index >= BLOCK_COUNT)
    throw new RangeError(`no address block ${index}`);
  const start = BASE + index * 4096;
  return {
    index,
    cidr: `${dotted(start)}/20`,
    hostAddress: dotted(start + 4093),
    routerAddress: dotted(start + 4094),
    slotAddress(slot) {
      if (!Number.isInteger(slot) || slot < 1 || slot > MAX_SLOT) throw new RangeError(`no slot ${slot}`);
      return dotted(start + slot);
    },
    slotOf(address) {
      const slot = (ipv4Number(address) ?? 0) - (start >>> 0);
      return slot >= 1 && slot <= MAX_SLOT ? slot : undefined;
    },
  };
}

/**
 * Whether a route to `destination`, as `ip route` writes it, leads part of the block elsewhere. Wider ones than the whole
 * range, such as a VPN's half of the internet, do not: the block's own route is more specific.
 */
export function routeTouchesBlock(destination: string, block: AddressBlock): boolean {
  const [address = "", length = "32"] = destination.split("/");
  const prefix = Number(length);
  if (!isIPv4(address) || prefix < RANGE_PREFIX_LENGTH) return false;
  const size = 2 ** (32 - Math.min(prefix, BLOCK_PREFIX_LENGTH));
  const start = (text: string): number =>
    Math.floor(text.split(".").reduce((value, part) => value * 256 + Number(part), 0) / size);
  return start(address) === start(block.slotAddress(1));
}
