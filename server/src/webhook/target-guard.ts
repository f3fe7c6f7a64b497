import { lookup as resolve } from "node:dns";
import { BlockList, isIP, type LookupFunction } from "node:net";

/**
 * Addresses that no webhook may name unless the configuration says so: everything that is not plain public unicast. IPv4
 * by the IANA special-purpose registry (RFC 6890); of IPv6 only 2000::/3 is public at all, less what embeds IPv4
 * addresses (6to4, Teredo) or documents.
 */
const SPECIAL_IPV4 = [
  "0.0.0.0/8",
  "10.0.0.0/8",
  "100.64.0.0/10",
  "127.0.0.0/8",
  "169.254.0.0/16",
  "172.16.0.0/12",
  "192.0.0.0/24",
  "192.0.2.0/24",
  "192.88.99.0/24",
  "192.168.0.0/16",
  "198.18.0.0/15",
  "198.51.100.0/24",
  "203.0.113.0/24",
  "224.0.0.0/4",
  "240.0.0.0/4",
];
const SPECIAL_IPV6 = ["2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"];

/**
 * Decides where webhooks may go. A server that fetches URLs it is given can be turned against its own network, so only
 * public addresses over https are open; others are named in the configuration, and those may use http.
 */
export class TargetGuard {
  readonly #allowed: BlockList;
  readonly #special = blockListOf([...SPECIAL_IPV4, ...SPECIAL_IPV6]);
  readonly #publicIpv6 = blockListOf(["2000::/3"]);

  /** @param allowedRanges addresses and CIDR ranges that may be named though they are not public */
  constructor(allowedRanges: readonly string[]) {
    this.#allowed = blockListOf(allowedRanges);
  }

  /** Why that URL cannot be a target whatever its name resolves to; undefined when it may be. */
  refusal(url: URL): string | undefined {
    const host = url.hostname.replaceAll(/^\[|\]$/g, "");
    if (isIP(host) !== 0) return this.#refusalOf(host, url.protocol);
    return undefined;
  }

  /**
   * A `lookup` for a request to that URL: resolves the name and lets only allowed addresses through, so that what was
   * checked is what is connected to.
   */
  lookupFor(url: URL): LookupFunction {
    return (hostname, options, callback) => {
      resolve(hostname, { all: true, verbatim: true }, (error, addresses) => {
        if (error !== null) return callback(error, "", 0);
        const allowed = addresses.filter(
          ({ address }) => this.#refusalOf(address, url.protocol) === undefined,
        );
        const [first] = allowed;
        if (first === undefined) {
          const shown = addresses[0]?.address ?? "";
          return callback(
            new Error(this.#refusalOf(shown, url.protocol) ?? `${hostname} has no address`),
            "",
            0,
          );
        }
        if (options.all === true) return callback(null, allowed);
        callback(null, first.address, first.family);
      });
    };
  }

  #refusalOf(address: string, protocol: string): string | undefined {
    const plain = address.toLowerCase().startsWith("::ffff:") ? address.slice("::ffff:".length) : address;
    const family = isIP(plain) === 4 ? "ipv4" : "ipv6";
    if (isIP(plain) !== 0 && this.#allowed.check(plain, family)) return undefined;
    const isPublic =
      isIP(plain) !== 0 &&
      !this.#special.check(plain, family) &&
      (family === "ipv4" || this.#publicIpv6.check(plain, "ipv6"));
    if (!isPublic)
      return `${address} is not a public address; whoever runs this server can open it with TORPOR_WEBHOOK_ALLOW`;
    return protocol === "https:" ? undefined : "a webhook over the internet must be https://";
  }
}

/** Whether `text` is an address or a CIDR range. */
export function isAddressRange(text: string): boolean {
  const [address = "", bits, ...rest] = text.split("/");
  const family = isIP(address);
  if (family === 0 || rest.length > 0) return false;
  return bits === undefined || (/^\d{1,3}$/.test(bits) && Number(bits) <= (family === 4 ? 32 : 128));
}

function blockListOf(ranges: readonly string[]): BlockList {
  const list = new BlockList();
  for (const range of ranges) {
    const [address = "", bits] = range.split("/");
    const family = isIP(address) === 4 ? "ipv4" : "ipv6";
    if (bits === undefined) list.addAddress(address, family);
    else list.addSubnet(address, Number(bits), family);
  }
  return list;
}
