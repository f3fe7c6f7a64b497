import { readFile } from "node:fs/promises";
import { isIPv4 } from "node:net";

/** systemd-resolved's stub listens on loopback, out of a sandbox's reach; the servers behind it stand here. */
const CANDIDATES = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];

/**
 * Name servers a sandbox with internet access may ask: the machine's own IPv4 ones that are not on loopback. They are
 * let through on port 53 even when their address is private.
 */
export async function findResolvers(paths: readonly string[] = CANDIDATES): Promise<string[]> {
  for (const path of paths) {
    const text = await readFile(path, "utf8").catch(() => "");
    const usable = parseNameservers(text).filter((address) => isIPv4(address) && !address.startsWith("127."));
    if (usable.length > 0) return [...new Set(usable)].slice(0, 3);
  }
  return [];
}

function parseNameservers(text: string): string[] {
  return text
    .split("\n")
    .map((line) => /^\s*nameserver\s+(\S+)/.exec(line)?.[1])
    .filter((address) => address !== undefined);
}

/** Text of a guest's /etc/resolv.conf. */
export function resolvConfText(resolvers: readonly string[]): string {
  return [...resolvers.map((address) => `nameserver ${address}`), "options timeout:2 attempts:2", ""].join(
    "\n",
  );
}
