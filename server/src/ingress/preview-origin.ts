import type { IncomingHttpHeaders } from "node:http";
import { isIP } from "node:net";
import { SANDBOX_ID_PATTERN } from "@torpor/protocol";

/** What a Host header names below the preview domain. */
export interface PreviewTarget {
  sandboxId: string;
  port: number;
}

const LABEL_PATTERN = /^([1-9]\d{0,4})-([a-z0-9]+)$/;

/**
 * Where previews are served: `{port}-{sandbox}.{domain}`, so that each port of each sandbox is a web origin of its own, which
 * shares neither cookies nor storage with another or with the API.
 */
export class PreviewOrigin {
  /** `http:` or `https:`, as browsers see it. */
  readonly protocol: "http:" | "https:";
  readonly #domain: string;
  readonly #port: string;

  /** @param url Scheme, domain and port, such as `https://preview.example.com`. @throws Error when it is not that */
  constructor(url: string) {
    const refusal = PreviewOrigin.refusal(url);
    if (refusal !== undefined) throw new Error(`the preview URL ${refusal}`);
    const { protocol, hostname, port } = new URL(url);
    this.protocol = protocol === "https:" ? "https:" : "http:";
    this.#domain = hostname;
    this.#port = port;
  }

  /** Why `url` cannot be where previews are; undefined when it can. */
  static refusal(url: string): string | undefined {
    if (!URL.canParse(url)) return "must be a URL, e.g. https://preview.example.com";
    const { protocol, hostname, pathname, search, username } = new URL(url);
    if (protocol !== "http:" && protocol !== "https:") return "must begin with http:// or https://";
    if (pathname !== "/" || search !== "" || username !== "")
      return "must be scheme, domain and port alone, e.g. https://preview.example.com";
    if (isIP(hostname.replace(/^\[|\]$/g, "")) !== 0)
      return "must name a domain, not an address: each sandbox is a subdomain of it";
    return undefined;
  }

  /** Host name and port of one sandbox's port. */
  hostOf({ port, sandboxId }: PreviewTarget): string {
    return `${port}-${sandboxId}.${this.#domain}${this.#port === "" ? "" : `:${this.#port}`}`;
  }

  /**
   * What a request's Host header names: undefined for a host that is not below the preview domain, which is the API's;
   * `unknown` for one that is and names no sandbox's port. The port in the header does not matter: a proxy may stand before us.
   */
  targetOf(hostHeader: string | undefined): PreviewTarget | "unknown" | undefined {
    const name = hostHeader?.replace(/:\d*$/, "").replace(/\.$/, "").toLowerCase();
    if (name === undefined || !name.endsWith(`.${this.#domain}`)) return undefined;
    const match = LABEL_PATTERN.exec(name.slice(0, -this.#domain.length - 1));
    const port = Number(match?.[1]);
    const sandboxId = match?.[2] ?? "";
    if (!SANDBOX_ID_PATTERN.test(sandboxId) || port > 65_535) return "unknown";
    return { sandboxId, port };
  }

  /**
   * Whether a request comes from a page that is not the sandbox's own, as a browser says. To it all previews are one site: it
   * sends a visitor's cookies along with what one sandbox's page asks of another's.
   */
  isForeign(headers: IncomingHttpHeaders, { sandboxId }: PreviewTarget): boolean {
    const { origin } = headers;
    // Of a form on a page without referrers the origin is "null", also when it is the page's own.
    if (origin === undefined || headers["sec-fetch-site"] === "same-origin") return false;
    const from = URL.canParse(origin) ? this.targetOf(new URL(origin).host) : undefined;
    return from === undefined || from === "unknown" || from.sandboxId !== sandboxId;
  }
}
