import { readFile } from "node:fs/promises";
import { isIP } from "node:net";
import { GATEWAY_ADDRESS } from "./network/address-plan.ts";

/** Name servers that sandboxes' questions are passed on to: the machine's own, at most three, as in any resolver. */
export async function findResolvers(path = "/etc/resolv.conf"): Promise<string[]> {
  const text = await readFile(path, "utf8").catch(() => "");
  return [...new Set(parseNameservers(text).filter((address) => isIP(address) !== 0))].slice(0, 3);
}

function parseNameservers(text: string): string[] {
  return text
    .split("\n")
    .map((line) => /^\s*nameserver\s+(\S+)/.exec(line)?.[1])
    .filter((address) => address !== undefined);
}

/**
 * A guest's /etc/resolv.conf, whatever its policy: questions to its gateway come to the resolver on the host. The same for
 * all, so that it need not change with the policy.
 */
export const RESOLV_CONF = `nameserver ${GATEWAY_ADDRESS}\noptions timeout:2 attempts:2\n`;
