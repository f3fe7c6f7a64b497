import { type NetworkPolicy, type NetworkRequest, networkSchema, parseNetworkEntry } from "@torpor/protocol";
import { z } from "zod";
import { checkInput } from "../http/check-input.ts";
import { refused } from "../sandbox/create-plan.ts";
import { notYet } from "./e2b-error.ts";

/** All addresses, as E2B's clients write them (`ALL_TRAFFIC`). */
const ALL_TRAFFIC = "0.0.0.0/0";

/** The outgoing part of E2B's `network`, and what of it is refused. */
export const egressSchema = z.object({
  allowOut: z.array(z.string()).nullish(),
  denyOut: z.array(z.string()).nullish(),
  rules: z.record(z.string(), z.unknown()).nullish(),
  egressProxy: z.unknown().optional(),
});
type Egress = z.output<typeof egressSchema>;

/**
 * What E2B's words for the network come to. Theirs let `allowOut` go before `denyOut`, ours `deny` before `allow`: what
 * cannot be said both ways is refused rather than changed.
 *
 * @throws CodedError invalid_request; unsupported for what is not there
 */
export function networkRequest(internet: boolean | undefined, egress: Egress | undefined): NetworkRequest {
  const { allowOut, denyOut, rules, egressProxy } = egress ?? {};
  if (rules != null && Object.keys(rules).length > 0)
    throw notYet("network.rules", "requests are passed on as they are, without headers put in");
  if (egressProxy != null)
    throw notYet("network.egressProxy", "what a sandbox may reach is decided by allowOut and denyOut");
  const allow = allowOut ?? [];
  const deny = denyOut ?? [];
  const named = deny.find((entry) => isDomain(entry));
  if (named !== undefined)
    throw refused("network.denyOut", `names ${named}, but only IP addresses and CIDRs can be denied`);
  const isClosed = internet === false || deny.includes(ALL_TRAFFIC);
  if (!isClosed && allow.some(isDomain))
    throw refused(
      "network.allowOut",
      "names domains: when specifying allowed domains in allow out, you must include 'ALL_TRAFFIC' in deny out to block all other traffic",
    );
  const rest = deny.filter((entry) => entry !== ALL_TRAFFIC);
  if (isClosed) {
    // All is denied: what is denied beside it says nothing more, and what is allowed goes before it.
    return allow.includes(ALL_TRAFFIC)
      ? "internet"
      : checkInput(networkSchema, allow.length === 0 ? "none" : { egress: "none", allow }, "body");
  }
  if (rest.length === 0) return "internet";
  if (allow.length > 0)
    throw refused(
      "network.allowOut",
      "makes exceptions from addresses in denyOut, which this server cannot; deny ALL_TRAFFIC and list what is allowed, or leave allowOut out",
    );
  return checkInput(networkSchema, { egress: "internet", deny: rest }, "body");
}

/** A policy in E2B's words. */
export function shownNetwork(network: NetworkPolicy): {
  allowInternetAccess: boolean;
  allowOut: string[];
  denyOut: string[];
} {
  if (network === "internet") return { allowInternetAccess: true, allowOut: [], denyOut: [] };
  if (network === "none") return { allowInternetAccess: false, allowOut: [], denyOut: [ALL_TRAFFIC] };
  const isClosed = network.egress === "none";
  return {
    allowInternetAccess: !isClosed,
    allowOut: network.allow,
    denyOut: isClosed ? [ALL_TRAFFIC, ...network.deny] : network.deny,
  };
}

function isDomain(text: string): boolean {
  const entry = parseNetworkEntry(text);
  return "kind" in entry && entry.kind === "domain";
}
