import { NEVER_REACHABLE } from "@torpor/protocol";
import { type AddressBlock, GUEST_ADDRESS, MAX_SLOT } from "./address-plan.ts";
import type { GatePorts } from "./egress-rules.ts";

/** Questions a sandbox may ask of the resolver, per second and in one burst; more are dropped before they cost the host anything. */
const DNS_RATE = "rate over 200/second burst 400 packets";
/** New connections to the gate, likewise; more are refused. */
const CONNECTION_RATE = "rate over 100/second burst 200 packets";

/** How long a slot may make no new connections should nobody end it: longer than a checkpoint takes to try. */
const CLOSED_TIMEOUT = "5m";

/**
 * The rules of the router's namespace, for nft: whole, in one transaction. What the slots under a policy of their own are
 * given comes on top (`egress-rules.ts`).
 *
 * What leaves by `policies` is judged packet by packet, so that a changed policy cuts what is under way.
 */
export function routerRules(block: AddressBlock, ports: GatePorts): string {
  // All slots there can be, once: neither making nor removing one then changes a rule.
  const sources = Array.from(
    { length: MAX_SLOT },
    (_, index) => `s${index + 1} : ${block.slotAddress(index + 1)}`,
  ).join(", ");
  const resolver = `${block.hostAddress}:${ports.dns}`;
  return `
table ip torpor {}
delete table ip torpor
table ip torpor {
  map guest_source { type ifname : ipv4_addr; elements = { ${sources} } }
  set never { type ipv4_addr; flags interval; elements = { ${NEVER_REACHABLE.join(", ")} } }
  map policies { type ifname : verdict; }
  map diversions { type ifname : verdict; }
  set closed { type ifname; flags timeout; timeout ${CLOSED_TIMEOUT}; }
  set dns_rate { type ipv4_addr; size 4096; flags dynamic; timeout 10s; }
  set connection_rate { type ipv4_addr; size 4096; flags dynamic; timeout 10s; }
  chain from_guest {
    type filter hook prerouting priority -310; policy accept;
    iifname "s*" ip saddr != ${GUEST_ADDRESS} drop
    iifname "s*" ip saddr set iifname map @guest_source
  }
  chain divert {
    type nat hook prerouting priority -100; policy accept;
    iifname "s*" meta l4proto { tcp, udp } th dport 53 ip daddr @never dnat to ${resolver}
    iifname vmap @diversions
  }
  chain to_guest {
    type filter hook postrouting priority 310; policy accept;
    oifname "s*" ip daddr set ${GUEST_ADDRESS}
  }
  chain forward {
    type filter hook forward priority 0; policy drop;
    iifname "up0" oifname "s*" accept
    iifname "s*" oifname "s*" jump refuse
    iifname @closed tcp flags & (syn | ack) == syn jump refuse
    iifname "s*" ct direction reply ct state established accept
    iifname "s*" ct status dnat jump to_gate
    iifname vmap @policies
    iifname "s*" ct state established,related accept
    iifname "s*" ip daddr @never jump refuse
    iifname "s*" oifname "up0" accept
  }
  chain to_gate {
    udp dport ${ports.dns} update @dns_rate { ip saddr limit ${DNS_RATE} } drop
    ct state new meta l4proto tcp update @connection_rate { ip saddr limit ${CONNECTION_RATE} } jump refuse
    ip daddr ${block.hostAddress} accept
    jump refuse
  }
  chain refuse {
    meta l4proto tcp reject with tcp reset
    reject with icmp admin-prohibited
  }
  chain input {
    type filter hook input priority 0; policy drop;
    iifname "up0" accept
    ct state established,related accept
    iifname "s*" jump refuse
  }
}
table ip6 torpor {}
delete table ip6 torpor
table ip6 torpor {
  chain forward { type filter hook forward priority 0; policy drop; }
  chain input { type filter hook input priority 0; policy drop; }
}
`;
}

/**
 * The rules of the host's own namespace. Its services are refused to sandboxes whatever address they listen on; only
 * answers to the host's own connections come in, and what is for the gate. Nothing from outside starts a connection to
 * a sandbox.
 */
export function hostRules(nftTable: string, uplink: string, block: AddressBlock, ports: GatePorts): string {
  const gate = `iifname "${uplink}" ip saddr ${block.cidr} ip daddr ${block.hostAddress}`;
  return `
table inet ${nftTable} {}
delete table inet ${nftTable}
table inet ${nftTable} {
  chain input {
    type filter hook input priority -5; policy accept;
    iifname "${uplink}" ct state established,related accept
    ${gate} tcp dport { ${ports.dns}, ${ports.http}, ${ports.tls} } accept
    ${gate} udp dport ${ports.dns} accept
    iifname "${uplink}" drop
  }
  chain forward {
    type filter hook forward priority -5; policy accept;
    oifname "${uplink}" ct state established,related accept
    oifname "${uplink}" drop
  }
  chain postrouting {
    type nat hook postrouting priority 100; policy accept;
    ip saddr ${block.cidr} oifname != "${uplink}" masquerade
  }
}
`;
}
