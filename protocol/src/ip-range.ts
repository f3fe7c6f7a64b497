/** Addresses of one version that share their first `prefixLength` bits; a single address has them all. */
export interface IpRange {
  version: 4 | 6;
  /** The first address, as a number. */
  first: bigint;
  prefixLength: number;
}

const BITS = { 4: 32, 6: 128 } as const;

/** An IPv4 address as its number; undefined for anything else, forms that other programs read as octal included. */
export function ipv4Number(text: string): number | undefined {
  const parts = text.split(".");
  if (parts.length !== 4 || !parts.every((part) => /^(?:0|[1-9]\d{0,2})$/.test(part) && Number(part) <= 255))
    return undefined;
  return parts.reduce((value, part) => value * 256 + Number(part), 0);
}

function ipv4Text(value: number): string {
  return [24, 16, 8, 0].map((shift) => Math.floor(value / 2 ** shift) % 256).join(".");
}

function ipv6Number(text: string): bigint | undefined {
  const halves = text.split("::");
  if (halves.length > 2) return undefined;
  const [head, tail] = halves.map((half) => (half === "" ? [] : half.split(":")));
  const groups = [...(head ?? [])];
  if (tail !== undefined) {
    const missing = 8 - groups.length - tail.length;
    if (missing < 1) return undefined;
    groups.push(...Array.from({ length: missing }, () => "0"), ...tail);
  }
  if (groups.length !== 8 || !groups.every((group) => /^[0-9a-f]{1,4}$/i.test(group))) return undefined;
  return groups.reduce((value, group) => value * 65_536n + BigInt(`0x${group}`), 0n);
}

function ipv6Text(value: bigint): string {
  return Array.from({ length: 8 }, (_, index) =>
    ((value >> BigInt(16 * (7 - index))) & 0xffffn).toString(16),
  ).join(":");
}

/**
 * Reads `192.0.2.7`, `192.0.2.0/24` or the same of IPv6.
 *
 * @returns the range, or a sentence's end that says what is wrong with it
 */
export function parseIpRange(text: string): IpRange | { problem: string } {
  const [address = "", length, ...rest] = text.split("/");
  const version = address.includes(":") ? 6 : 4;
  const parsed = version === 4 ? ipv4Number(address) : ipv6Number(address);
  if (parsed === undefined || rest.length > 0)
    return {
      problem: `is not an IPv${version} address or CIDR, such as ${version === 4 ? "192.0.2.0/24" : "2001:db8::/32"}`,
    };
  const bits = BITS[version];
  if (length !== undefined && !(/^(?:0|[1-9]\d{0,2})$/.test(length) && Number(length) <= bits))
    return { problem: `has a prefix length that is not 0 to ${bits}` };
  const range: IpRange = { version, first: BigInt(parsed), prefixLength: Number(length ?? bits) };
  const hostBits = BigInt(bits - range.prefixLength);
  const first = (range.first >> hostBits) << hostBits;
  if (first !== range.first)
    return { problem: `has bits set behind its prefix; did you mean ${ipRangeText({ ...range, first })}?` };
  return range;
}

/** The one way to write a range: an address alone for a single one. */
export function ipRangeText({ version, first, prefixLength }: IpRange): string {
  const address = version === 4 ? ipv4Text(Number(first)) : ipv6Text(first);
  return prefixLength === BITS[version] ? address : `${address}/${prefixLength}`;
}

/** Whether all of `inner` lies in `outer`. */
export function ipRangeCovers(outer: IpRange, inner: IpRange): boolean {
  if (outer.version !== inner.version || outer.prefixLength > inner.prefixLength) return false;
  const shift = BigInt(BITS[outer.version] - outer.prefixLength);
  return outer.first >> shift === inner.first >> shift;
}
