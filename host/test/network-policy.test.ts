import {
  canonicalNetwork,
  LIMITS,
  type NetworkPolicy,
  type NetworkRequest,
  networkSchema,
  parseNetworkEntry,
} from "@torpor/protocol";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { EgressPolicy } from "../src/network/egress-policy.ts";

function problem(network: unknown): string {
  const parsed = networkSchema.safeParse(network);
  if (parsed.success) return "accepted";
  const say = (issues: { path: PropertyKey[]; message: string; errors?: unknown }[]): string[] =>
    issues.flatMap((issue) =>
      Array.isArray(issue.errors)
        ? [issue.message, ...(issue.errors as (typeof issues)[]).flatMap(say)]
        : [`${issue.path.join(".")} ${issue.message}`],
    );
  return say(parsed.error.issues).join("; ");
}

describe("a network policy as it is asked for", () => {
  test.each<[NetworkRequest, NetworkPolicy]>([
    ["internet", "internet"],
    ["none", "none"],
    [{ egress: "internet" }, "internet"],
    [{ egress: "none", deny: ["192.0.2.1"] }, "none"],
    [{ deny: [] }, "internet"],
    // A list that a program made, and that came out empty, opens nothing.
    [{ allow: [] }, "none"],
    [{ allow: ["Example.COM."] }, { egress: "none", allow: ["example.com"], deny: [] }],
    [
      { allow: ["*.b.example", "a.example", "203.0.113.7/32", "a.example"], deny: ["203.0.113.0/28"] },
      { egress: "none", allow: ["*.b.example", "203.0.113.7", "a.example"], deny: ["203.0.113.0/28"] },
    ],
    [{ deny: ["2001:DB8::/32"] }, { egress: "internet", allow: [], deny: ["2001:db8:0:0:0:0:0:0/32"] }],
  ])("%j comes to %j, and stays so", (request, expected) => {
    expect(problem(request)).toBe("accepted");
    expect(canonicalNetwork(request)).toEqual(expected);
    expect(canonicalNetwork(canonicalNetwork(request))).toEqual(expected);
  });

  test.each([
    ["203.0.113.9/24", "allow.0", "did you mean 203.0.113.0/24?"],
    ["203.0.113.0/33", "allow.0", "prefix length"],
    ["203.0.113", "allow.0", "not an IPv4 address"],
    ["203.0.113.256", "allow.0", "not an IPv4 address"],
    ["0203.0.113.1", "allow.0", "not an IPv4 address"],
    ["203.0.113.1/24/8", "allow.0", "not an IPv4 address"],
    ["10.1.0.0/16", "allow.0", "no policy opens 10.0.0.0/8"],
    ["169.254.169.254", "allow.0", "no policy opens 169.254.0.0/16"],
    ["168.63.129.16", "allow.0", "no policy opens 168.63.129.16"],
    ["2001:db8::1", "allow.0", "no IPv6"],
    ["2001:db8:::1", "allow.0", "not an IPv6 address"],
    ["bücher.example", "allow.0", "xn--bcher-kva.example"],
    ["example.com:443", "allow.0", "names a port"],
    ["https://example.com/", "allow.0", "is a URL"],
    ["example.com/path", "allow.0", "is a URL or a path"],
    ["localhost", "allow.0", "single label"],
    ["*", "allow.0", "stands for everything"],
    ["a.*.example.com", "allow.0", "elsewhere than as its first label"],
    ["exa mple.com", "allow.0", "neither an address"],
    ["-a.example", "allow.0", "neither an address"],
    [`${"a".repeat(64)}.example`, "allow.0", "neither an address"],
    [Array.from({ length: 140 }, () => "a").join("."), "allow.0", "longer than a domain"],
    ["example.123", "allow.0", "ends in a number"],
  ])("is refused with %s, by name", (entry, path, message) => {
    const said = problem({ allow: [entry] });
    expect(said).toContain(path);
    expect(said).toContain(message);
    if (entry.length < 100) expect(said).toContain(entry);
  });

  test("is refused when it is empty, contradicts itself, or has too many entries", () => {
    expect(problem({})).toContain("is empty");
    expect(problem({ egress: "internet", allow: ["example.com"] })).toContain("allow has no effect");
    const many = (count: number): string[] =>
      Array.from({ length: count }, (_, index) => `n${index}.example`);
    expect(problem({ allow: many(LIMITS.maxNetworkEntries) })).toBe("accepted");
    expect(problem({ allow: many(LIMITS.maxNetworkEntries), deny: ["a.example"] })).toContain(
      "more than 1000",
    );
    expect(problem({ allowed: [] })).toContain("allowed");
    expect(problem(7)).toContain("must be");
  });

  test("is read without a crash whatever it is", () => {
    fc.assert(
      fc.property(fc.oneof(fc.string(), fc.stringMatching(/^[a-f0-9.:/*-]{0,24}$/)), (text) => {
        const entry = parseNetworkEntry(text);
        const accepted = networkSchema.safeParse({ deny: [text] }).success;
        if ("problem" in entry) expect(accepted).toBe(false);
        else if (accepted)
          expect(new EgressPolicy(canonicalNetwork({ deny: [text] })).egress).toBe("internet");
      }),
    );
  });
});

describe("a network policy as it is asked", () => {
  const policy = (request: NetworkRequest): EgressPolicy => new EgressPolicy(canonicalNetwork(request));

  test("takes a domain for itself alone, and a wildcard for all below it alone", () => {
    const some = policy({ allow: ["a.example", "*.b.example"], deny: ["bad.b.example", "*.bad.b.example"] });
    const allowed = ["a.example", "x.b.example", "x.y.b.example", "not-bad.b.example"];
    const refused = [
      "x.a.example",
      "b.example",
      "bad.b.example",
      "x.bad.b.example",
      "xb.example",
      "example",
      "",
      "com",
    ];
    expect(allowed.filter((name) => !some.allowsName(name))).toEqual([]);
    expect(refused.filter((name) => some.allowsName(name))).toEqual([]);
    expect(some).toMatchObject({ hasNames: true, isPlainInternet: false, egress: "none" });
  });

  test("refuses names and addresses of the deny list under internet, and nothing else that is public", () => {
    const most = policy({ deny: ["*.evil.example", "203.0.113.0/24"] });
    expect(most.allowsName("x.evil.example")).toBe(false);
    expect(most.allowsName("evil.example")).toBe(true);
    expect(most.allowsAddress("203.0.113.200")).toBe(false);
    expect(most.allowsAddressOfName("203.0.113.200")).toBe(false);
    expect(most.allowsAddress("203.0.114.1")).toBe(true);
    expect(policy("internet")).toMatchObject({ isPlainInternet: true, hasNames: false });
    expect(policy("none").allowsName("a.example")).toBe(false);
  });

  test("lets deny go before allow, and what is never reached before both", () => {
    const some = policy({ allow: ["0.0.0.0/0"], deny: ["203.0.113.0/25"] });
    expect(some.allowsAddress("203.0.113.1")).toBe(false);
    expect(some.allowsAddress("203.0.113.129")).toBe(true);
    for (const never of ["10.0.0.1", "169.254.169.254", "127.0.0.1", "198.18.0.1", "not an address", "::1"])
      for (const one of [some, policy("internet")])
        expect([one.allowsAddress(never), one.allowsAddressOfName(never)]).toEqual([false, false]);
  });

  test("keeps no range that another covers, which the kernel would refuse", () => {
    const { allowed } = policy({
      allow: ["203.0.113.0/28", "203.0.113.4", "203.0.113.0/24", "203.0.113.128/25"],
    });
    expect(allowed.map(({ prefixLength }) => prefixLength)).toEqual([24]);
  });
});
