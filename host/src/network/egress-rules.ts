import { ipRangeText, type IpRange } from "@torpor/protocol";
import type { EgressPolicy } from "./egress-policy.ts";

/** Where the host process answers for sandboxes, on the address of its end of the uplink. */
export interface GatePorts {
  /** Names, UDP and TCP. */
  dns: number;
  /** Connections to port 80 whose Host is looked at. */
  http: number;
  /** Connections to port 443 whose server name is looked at. */
  tls: number;
}

/** Name of a slot's chains and its key in the maps `policies` and `diversions`. */
const link = (slot: number): string => `s${slot}`;

function addresses(ranges: readonly IpRange[]): string {
  return `{ ${ranges.map(ipRangeText).join(", ")} }`;
}

/**
 * The nft lines that put a slot under a policy, whatever it was under before. They assume the table `torpor` as
 * `router-rules.ts` makes it, and are one transaction.
 */
export function slotRules(
  slot: number,
  policy: EgressPolicy,
  gate: { address: string; ports: GatePorts },
): string {
  const name = link(slot);
  const { allowed, denied } = policy;
  const forward = [
    // What was under way before the policy changed and does not pass by the resolver.
    "meta l4proto { tcp, udp } th dport 53 jump refuse",
    "ip daddr @never jump refuse",
    ...(denied.length === 0 ? [] : [`ip daddr ${addresses(denied)} jump refuse`]),
    ...(allowed.length === 0 ? [] : [`ip daddr ${addresses(allowed)} oifname "up0" accept`]),
    // Names are judged by the gate: of these ports only what passes by it.
    ...(policy.hasNames ? ["tcp dport { 80, 443 } jump refuse", "udp dport 443 jump refuse"] : []),
    ...(policy.egress === "internet" ? [] : ["jump refuse"]),
  ];
  const divert = [
    // Under a policy every name is asked of the resolver that knows it, whomever the sandbox asks.
    `meta l4proto { tcp, udp } th dport 53 dnat to ${gate.address}:${gate.ports.dns}`,
    ...(policy.hasNames
      ? [
          "ip daddr @never return",
          ...(denied.length === 0 ? [] : [`ip daddr ${addresses(denied)} return`]),
          ...(allowed.length === 0 ? [] : [`ip daddr ${addresses(allowed)} return`]),
          `tcp dport 80 dnat to ${gate.address}:${gate.ports.http}`,
          `tcp dport 443 dnat to ${gate.address}:${gate.ports.tls}`,
        ]
      : []),
  ];
  return `
add chain ip torpor policy_${name}
add chain ip torpor divert_${name}
flush chain ip torpor policy_${name}
flush chain ip torpor divert_${name}
${forward.map((rule) => `add rule ip torpor policy_${name} ${rule}`).join("\n")}
${divert.map((rule) => `add rule ip torpor divert_${name} ${rule}`).join("\n")}
add element ip torpor policies { "${name}" : jump policy_${name} }
add element ip torpor diversions { "${name}" : jump divert_${name} }
`;
}

/** The nft lines that put a slot under plain internet again, whatever it was under before. */
export function noSlotRules(slot: number): string {
  const name = link(slot);
  // Deleting what is not there is an error, adding what is there is none: it is added first, in the same transaction.
  return `
add chain ip torpor policy_${name}
add chain ip torpor divert_${name}
add element ip torpor policies { "${name}" : jump policy_${name} }
add element ip torpor diversions { "${name}" : jump divert_${name} }
delete element ip torpor policies { "${name}" }
delete element ip torpor diversions { "${name}" }
flush chain ip torpor policy_${name}
flush chain ip torpor divert_${name}
delete chain ip torpor policy_${name}
delete chain ip torpor divert_${name}
`;
}
