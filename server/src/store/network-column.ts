import { type NetworkPolicy, networkPolicySchema } from "@torpor/protocol";

/** A network policy as its column holds it: the word, or the rules as JSON. */
export function networkColumn(network: NetworkPolicy): string {
  return typeof network === "string" ? network : JSON.stringify(network);
}

/** @throws ZodError or SyntaxError when the column holds something else: what a sandbox may reach is never guessed */
export function readNetworkColumn(text: string): NetworkPolicy {
  return networkPolicySchema.parse(text.startsWith("{") ? JSON.parse(text) : text);
}
