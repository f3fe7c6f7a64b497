import type { NetworkWire } from "./wire.ts";

/** What a sandbox may reach, as the server shows it. */
export type NetworkPolicy = NetworkWire;

/** Rules of a network policy; `deny` goes before `allow`. At most 1000 entries in all. */
export interface NetworkRules {
  /** What holds for all that no entry names. Default `none` with `allow`, else `internet`. */
  egress?: "internet" | "none" | undefined;
  /**
   * What is reached though egress is `none`: IPv4 addresses and CIDRs (`203.0.113.0/24`) on all ports, domains
   * (`example.com`, `*.example.com` for all below it) on TCP 80 and 443.
   */
  allow?: readonly string[] | undefined;
  /** What is not reached. */
  deny?: readonly string[] | undefined;
}

/**
 * What a sandbox may reach: `internet`, public addresses alone; `none`; or rules. Private, link-local and metadata addresses,
 * the host and other sandboxes are never reached.
 */
export type Network = "internet" | "none" | NetworkRules;
