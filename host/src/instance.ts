import { createHash } from "node:crypto";

/**
 * Names of everything this instance owns on the machine. They are derived from the state directory, so that several
 * instances live side by side and a sweep after a crash recognises its own leftovers and nobody else's.
 */
export interface Instance {
  /** Six hex digits. */
  tag: string;
  /** Network namespace through which all sandboxes of this instance are routed. */
  routerNetns: string;
  /** Link in the host's own namespace that leads to the router. At most 15 characters. */
  uplink: string;
  /** nft table in the host's own namespace. */
  nftTable: string;
  /** Cgroup directory name, below each controller's mount. */
  cgroup: string;
  /** Network namespace of one slot. */
  slotNetns(slot: number): string;
  /** Matches the network namespaces of all slots; group 1 is the slot number. */
  slotNetnsPattern: RegExp;
}

/** Names for the instance whose state directory is `stateDir` (an absolute path). */
export function instanceNames(stateDir: string): Instance {
  const tag = createHash("sha256").update(stateDir).digest("hex").slice(0, 6);
  return {
    tag,
    routerNetns: `torpor-${tag}`,
    uplink: `tp-${tag}`,
    nftTable: `torpor_${tag}`,
    cgroup: `torpor-${tag}`,
    slotNetns: (slot) => `torpor-${tag}-${slot}`,
    slotNetnsPattern: new RegExp(`^torpor-${tag}-(\\d+)$`),
  };
}
