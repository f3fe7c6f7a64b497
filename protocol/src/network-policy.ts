import { z } from "zod";
import { type IpRange, ipRangeCovers, ipRangeText, parseIpRange } from "./ip-range.ts";
import { LIMITS } from "./limits.ts";

/**
 * What no sandbox reaches, whatever its policy says: this network, private, shared, loopback, link-local (cloud
 * metadata), protocol assignments, benchmarking (other sandboxes), multicast, reserved (RFC 6890); and Azure's
 * WireServer, which is metadata under a public address.
 */
export const NEVER_REACHABLE = [
  "0.0.0.0/8",
  "10.0.0.0/8",
  "100.64.0.0/10",
  "127.0.0.0/8",
  "168.63.129.16/32",
  "169.254.0.0/16",
  "172.16.0.0/12",
  "192.0.0.0/24",
  "192.168.0.0/16",
  "198.18.0.0/15",
  "224.0.0.0/4",
  "240.0.0.0/4",
] as const;

/** One entry of a list: addresses, or names. A wildcard stands for all names below `name`, at any depth, and not for it. */
export type NetworkEntry =
  | { kind: "addresses"; range: IpRange }
  | { kind: "domain"; name: string; isWildcard: boolean };

const LABEL = /^[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?$/;

function requireRange(text: string): IpRange {
  const range = parseIpRange(text);
  if ("problem" in range) throw new TypeError(`${text} ${range.problem}`);
  return range;
}

/** {@link NEVER_REACHABLE} as ranges. */
export const NEVER_REACHABLE_RANGES: readonly IpRange[] = NEVER_REACHABLE.map(requireRange);

/**
 * Reads an entry of an `allow` or `deny` list: `192.0.2.7`, `192.0.2.0/24`, `example.com` or `*.example.com`.
 *
 * @returns the entry, or a sentence's end that says what is wrong with it
 */
export function parseNetworkEntry(text: string): NetworkEntry | { problem: string } {
  if (/^[0-9a-f]{0,4}:[0-9a-f:]*(?:\/.*)?$/i.test(text) || /^[\d.]+(?:\/.*)?$/.test(text)) {
    const range = parseIpRange(text);
    return "problem" in range ? range : { kind: "addresses", range };
  }
  if (/^[a-z][a-z0-9+.-]*:\/\//i.test(text) || text.includes("/"))
    return { problem: "is a URL or a path; name the domain alone" };
  if (text.includes(":"))
    return { problem: "names a port; a domain stands for ports 80 and 443, an address for all of them" };
  if (text === "*") return { problem: 'stands for everything; say egress "internet" instead' };
  const lower = text.toLowerCase().replace(/\.$/, "");
  const isWildcard = lower.startsWith("*.");
  const name = isWildcard ? lower.slice(2) : lower;
  const problem = domainProblem(name, isWildcard);
  return problem === undefined ? { kind: "domain", name, isWildcard } : { problem };
}

function domainProblem(name: string, isWildcard: boolean): string | undefined {
  if (name.includes("*")) return 'has a "*" elsewhere than as its first label, as in *.example.com';
  if (/[^\p{ASCII}]/u.test(name)) return `is not ASCII; write ${asciiForm(name)}`;
  if (name.length > 253) return "is longer than a domain may be (253 characters)";
  const labels = name.split(".");
  if (!labels.every((label) => LABEL.test(label)))
    return "is neither an address, a CIDR nor a domain such as example.com or *.example.com";
  if (labels.length < 2 && !isWildcard) return "is a single label; name a whole domain, such as example.com";
  if (/^\d+$/.test(labels.at(-1) ?? "")) return "ends in a number, as no domain does";
  return undefined;
}

function asciiForm(name: string): string {
  try {
    return new URL(`http://${name}`).hostname;
  } catch {
    return "its ASCII form (xn--...)";
  }
}

function entryText(text: string): string {
  const entry = parseNetworkEntry(text);
  if ("problem" in entry) throw new TypeError(`network entry ${JSON.stringify(text)} ${entry.problem}`);
  if (entry.kind === "addresses") return ipRangeText(entry.range);
  return entry.isWildcard ? `*.${entry.name}` : entry.name;
}

const entrySchema = z
  .string()
  .min(1)
  .max(300)
  .superRefine((text, context) => {
    const entry = parseNetworkEntry(text);
    if ("problem" in entry)
      context.addIssue({ code: "custom", message: `is ${JSON.stringify(text)}, which ${entry.problem}` });
  });

const allowEntrySchema = entrySchema.superRefine((text, context) => {
  const entry = parseNetworkEntry(text);
  if ("problem" in entry || entry.kind !== "addresses") return;
  const { range } = entry;
  const refuse = (why: string): void =>
    context.addIssue({ code: "custom", message: `is ${JSON.stringify(text)}, ${why}` });
  if (range.version === 6) refuse("but sandboxes have no IPv6, so it would allow nothing; leave it out");
  const never = NEVER_REACHABLE_RANGES.find((denied) => ipRangeCovers(denied, range));
  if (never !== undefined)
    refuse(`but no policy opens ${ipRangeText(never)} (private, link-local and other special addresses)`);
});

/** Rules of a network policy, as they are asked for. */
export const networkRulesSchema = z
  .strictObject({
    egress: z
      .enum(["internet", "none"])
      .optional()
      .describe("What holds for all that no entry names. Default `none` with `allow`, else `internet`."),
    allow: z
      .array(allowEntrySchema)
      .optional()
      .describe(
        "What is reached though egress is `none`: IPv4 addresses and CIDRs on all ports; domains (`example.com` itself, `*.example.com` all below it) on TCP 80 and 443, by the name the connection itself gives (Host, SNI).",
      ),
    deny: z
      .array(entrySchema)
      .optional()
      .describe(
        "What is not reached; goes before `allow`. A domain blocks the name, not an address that somebody knows.",
      ),
  })
  .refine(
    (rules) => Object.values(rules).some((value) => value !== undefined),
    "is empty: name at least one of egress, allow, deny",
  )
  .refine(
    ({ allow = [], deny = [] }) => allow.length + deny.length <= LIMITS.maxNetworkEntries,
    `has more than ${LIMITS.maxNetworkEntries} entries in allow and deny together`,
  )
  .refine(({ egress, allow = [] }) => egress !== "internet" || allow.length === 0, {
    path: ["allow"],
    message:
      'has no effect with egress "internet", which reaches everything public; leave out one of the two',
  });

/** A sandbox's network: a word, or rules. What it comes to is {@link canonicalNetwork}. */
export const networkSchema = z.union([z.enum(["internet", "none"]), networkRulesSchema], {
  error: 'must be "internet", "none" or {egress, allow, deny} with lists of addresses, CIDRs and domains',
});
/** As it is asked for. */
export type NetworkRequest = z.infer<typeof networkSchema>;

/** As it is kept and shown: a word where that says all; entries in one form, in order, without doubles. */
export const shownNetworkSchema = z.union([
  z.enum(["internet", "none"]),
  z.object({
    egress: z.enum(["internet", "none"]),
    allow: z.array(z.string()),
    deny: z.array(z.string()),
  }),
]);

export type NetworkPolicy = z.infer<typeof shownNetworkSchema>;

/** @throws TypeError for entries that {@link networkSchema} refuses */
export function canonicalNetwork(request: NetworkRequest): NetworkPolicy {
  if (typeof request === "string") return request;
  const { egress = request.allow === undefined ? "internet" : "none" } = request;
  const canonical = (entries: readonly string[] = []): string[] =>
    [...new Set(entries.map(entryText))].toSorted();
  const allow = canonical(request.allow);
  const deny = canonical(request.deny);
  if (allow.length === 0 && (egress === "none" || deny.length === 0)) return egress;
  return { egress, allow, deny };
}

/** As {@link networkSchema}, read into the form it is kept in. */
export const networkPolicySchema = networkSchema.transform(canonicalNetwork);

/** Whether two policies, in canonical form, say the same. */
export function sameNetwork(one: NetworkPolicy, other: NetworkPolicy): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}

/** Body of `PATCH /v1/sandboxes/{id}/network`: the whole policy anew. */
export const updateNetworkSchema = z.strictObject({ network: networkSchema });
