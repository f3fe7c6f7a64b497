import { isIP } from "node:net";
import { CodedError } from "@torpor/protocol";

/** What a certificate is for: names of the DNS, with wildcards, and addresses. */
export interface CoveredNames {
  dns: string[];
  addresses: string[];
}

/**
 * What clients of an instance with this environment call it by over TLS: this machine's own names, E2B's domain and that of
 * previews with their subdomains, and the address that TLS is spoken on when it is one alone.
 *
 * @throws CodedError `invalid_request` for a domain or URL that is none, before it gets into a certificate
 */
export function coveredNames(env: NodeJS.ProcessEnv): CoveredNames {
  const domains = ["localhost"];
  const e2bDomain = env["TORPOR_E2B_DOMAIN"];
  if (e2bDomain) domains.push(domainOf(`https://${e2bDomain}`, "TORPOR_E2B_DOMAIN"));
  const previewUrl = env["TORPOR_PREVIEW_URL"];
  if (previewUrl) domains.push(domainOf(previewUrl, "TORPOR_PREVIEW_URL"));
  const dns = [...new Set(domains)].flatMap((domain) => [domain, `*.${domain}`]);
  const address = (env["TORPOR_TLS_LISTEN"] ?? "").replace(/:\d*$/, "").replace(/^\[|\]$/g, "");
  const isOneAlone = isIP(address) !== 0 && address !== "0.0.0.0" && address !== "::";
  const addresses = [...new Set(["127.0.0.1", "::1", ...(isOneAlone ? [address] : [])])];
  return { dns, addresses };
}

function domainOf(url: string, setting: string): string {
  const name = URL.canParse(url) ? new URL(url).hostname : "";
  if (name.length <= 253 && /^[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63})*$/.test(name) && isIP(name) === 0)
    return name;
  throw new CodedError(
    "invalid_request",
    `${setting} names no domain that a certificate could be for: '${url}'`,
  );
}
