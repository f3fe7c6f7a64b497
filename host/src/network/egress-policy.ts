import {
  type IpRange,
  ipRangeCovers,
  ipRangeText,
  ipv4Number,
  NEVER_REACHABLE_RANGES,
  type NetworkPolicy,
  parseNetworkEntry,
} from "@torpor/protocol";

/** Names of a list, found without walking it. */
class NameSet {
  readonly #exact = new Set<string>();
  readonly #below = new Set<string>();

  get size(): number {
    return this.#exact.size + this.#below.size;
  }

  add(name: string, isWildcard: boolean): void {
    (isWildcard ? this.#below : this.#exact).add(name);
  }

  has(name: string): boolean {
    if (this.#exact.has(name)) return true;
    for (let at = name.indexOf("."); at !== -1; at = name.indexOf(".", at + 1))
      if (this.#below.has(name.slice(at + 1))) return true;
    return false;
  }
}

/**
 * What one sandbox may reach, ready to be asked. `deny` goes before `allow`, and what no policy opens before both.
 *
 * With names in either list, TCP 80 and 443 to addresses that are not allowed as such are judged by the name the
 * connection gives; names say nothing of other ports.
 */
export class EgressPolicy {
  readonly egress: "internet" | "none";
  /** IPv4, none within another. */
  readonly allowed: readonly IpRange[];
  readonly denied: readonly IpRange[];
  readonly hasNames: boolean;
  readonly #allowedNames = new NameSet();
  readonly #deniedNames = new NameSet();

  constructor(network: NetworkPolicy) {
    const { egress, allow, deny } =
      typeof network === "string" ? { egress: network, allow: [], deny: [] } : network;
    this.egress = egress;
    this.allowed = sort(allow, this.#allowedNames);
    this.denied = sort(deny, this.#deniedNames);
    this.hasNames = this.#allowedNames.size + this.#deniedNames.size > 0;
  }

  /** Everything public, as it is: what needs no rule of its own. */
  get isPlainInternet(): boolean {
    return this.egress === "internet" && this.denied.length === 0 && !this.hasNames;
  }

  /** Whether this name, in lower case and without a dot at its end, may be looked up and connected to. */
  allowsName(name: string): boolean {
    return !this.#deniedNames.has(name) && (this.egress === "internet" || this.#allowedNames.has(name));
  }

  /** Whether an address that an allowed name stands for may be connected to. */
  allowsAddressOfName(address: string): boolean {
    const range = single(address);
    return (
      range !== undefined &&
      !isNeverReachable(range) &&
      !this.denied.some((denied) => ipRangeCovers(denied, range))
    );
  }

  /** Whether an address may be connected to that no name stands for. */
  allowsAddress(address: string): boolean {
    const range = single(address);
    if (range === undefined || !this.allowsAddressOfName(address)) return false;
    return this.egress === "internet" || this.allowed.some((allowed) => ipRangeCovers(allowed, range));
  }
}

function single(address: string): IpRange | undefined {
  const value = ipv4Number(address);
  return value === undefined ? undefined : { version: 4, first: BigInt(value), prefixLength: 32 };
}

function isNeverReachable(range: IpRange): boolean {
  return NEVER_REACHABLE_RANGES.some((never) => ipRangeCovers(never, range));
}

/** Whether an IPv4 address is one that no policy opens; true for what is none. */
export function isNeverReachableAddress(address: string): boolean {
  const range = single(address);
  return range === undefined || isNeverReachable(range);
}

/** Puts the names of a list into `names`. @returns its IPv4 ranges without those that another covers; sandboxes have no IPv6 */
function sort(entries: readonly string[], names: NameSet): IpRange[] {
  const ranges = new Map<string, IpRange>();
  for (const text of entries) {
    const entry = parseNetworkEntry(text);
    if ("problem" in entry) throw new TypeError(`network entry ${JSON.stringify(text)} ${entry.problem}`);
    if (entry.kind === "domain") names.add(entry.name, entry.isWildcard);
    else if (entry.range.version === 4) ranges.set(ipRangeText(entry.range), entry.range);
  }
  // Wider ones first: whatever covers a range stands before it.
  const kept: IpRange[] = [];
  for (const range of [...ranges.values()].toSorted((a, b) => a.prefixLength - b.prefixLength))
    if (!kept.some((wider) => ipRangeCovers(wider, range))) kept.push(range);
  return kept;
}
