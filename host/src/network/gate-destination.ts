import { networkInterfaces } from "node:os";
import { isIPv4 } from "node:net";
import { parseNetworkEntry } from "@torpor/protocol";
import type { DnsUpstream } from "./dns-upstream.ts";
import type { EgressPolicy } from "./egress-policy.ts";

/** Where a connection that names `name` goes, or why it does not. */
export type Destination = { addresses: string[] } | { refusal: string };

/**
 * Judges the name a connection gives and looks up where it leads. The address the sandbox had in mind counts for nothing:
 * the name is looked up anew, so that an allowed name does not open another's address, and its answers must be public.
 */
export async function destinationOf(
  name: string,
  slot: number,
  policy: EgressPolicy,
  upstream: Pick<DnsUpstream, "addressesOf">,
): Promise<Destination> {
  if (isIPv4(name)) {
    return policy.allowsAddress(name) && !isOwnAddress(name)
      ? { addresses: [name] }
      : { refusal: `the network policy of this sandbox does not allow ${name}` };
  }
  const entry = parseNetworkEntry(name);
  if ("problem" in entry || entry.kind !== "domain" || entry.isWildcard)
    return { refusal: "the connection gives no domain name" };
  if (!policy.allowsName(entry.name))
    return { refusal: `the network policy of this sandbox does not allow ${entry.name}` };
  const found = await upstream.addressesOf(entry.name, slot);
  if (found.length === 0) return { refusal: `${entry.name} has no IPv4 address, or no name server knows it` };
  const addresses = found.filter((address) => policy.allowsAddressOfName(address) && !isOwnAddress(address));
  return addresses.length === 0
    ? {
        refusal: `${entry.name} leads to ${found[0]}, which the network policy of this sandbox does not allow`,
      }
    : { addresses };
}

/** Whether a connection that was let through still may be, under another policy. */
export function stillAllows(policy: EgressPolicy, name: string, address: string): boolean {
  return isIPv4(name)
    ? policy.allowsAddress(name)
    : policy.allowsName(name) && policy.allowsAddressOfName(address);
}

/** The host's own services are not for sandboxes, by its public addresses neither. */
function isOwnAddress(address: string): boolean {
  return Object.values(networkInterfaces()).some((list) => list?.some((own) => own.address === address));
}
