import type { NetworkPolicy } from "@torpor/sdk";

/** What a sandbox may reach, for a person: `internet`, or `none; allow pypi.org, 10.0.0.0/8`. */
export function networkWords(network: NetworkPolicy): string {
  if (typeof network === "string") return network;
  const { egress, allow, deny } = network;
  const list = (word: string, entries: readonly string[]): string =>
    entries.length === 0 ? "" : `; ${word} ${entries.join(", ")}`;
  return `${egress}${list("allow", allow)}${list("deny", deny)}`;
}
