import { createHash } from "node:crypto";
import type { IncomingMessage } from "node:http";
import { randomText } from "@torpor/protocol";

const TOKEN_PATTERN = /^tpv_[a-z0-9]{40}$/;
const QUERY_NAME = "torpor_token";
const HEADER_NAME = "x-torpor-token";
/** The longer name, which a browser takes only from this very host over https, cannot be planted by a sibling. */
const COOKIE_NAMES = { "http:": "torpor_preview", "https:": "__Host-torpor_preview" } as const;
/** A sibling host may plant cookies of our name: this many are looked at. */
const MAX_COOKIES = 4;

/** A new random token: 200 bits. */
export function newPreviewToken(): string {
  return `tpv_${randomText(40)}`;
}

/** SHA-256, hexadecimal: all that is kept of a token. */
export function hashPreviewToken(token: string): string {
  return createHash("sha256").update(token).digest("hex");
}

/** The URL that carries a token into a browser. */
export function previewLink(protocol: string, host: string, token: string): string {
  return `${protocol}//${host}/?${QUERY_NAME}=${token}`;
}

/** The tokens a request brings, and its URL without them. */
export interface PresentedTokens {
  /** Of the query or the header, which is meant; else of the cookie. */
  tokens: string[];
  isInQuery: boolean;
  /** Of cookies, which a browser sends along with whatever a page asks for. */
  isOfCookie: boolean;
  /** Path and query, otherwise byte for byte. */
  path: string;
}

export function presentedTokens({ url = "/", headers }: IncomingMessage): PresentedTokens {
  const [pathname = "/"] = url.split("?", 1);
  const query = url.slice(pathname.length + 1);
  const kept: string[] = [];
  const given: string[] = [];
  for (const part of query.split("&")) {
    if (part.startsWith(`${QUERY_NAME}=`)) given.push(part.slice(QUERY_NAME.length + 1));
    else if (part !== "") kept.push(part);
  }
  const isInQuery = given.length > 0;
  const header = headers[HEADER_NAME];
  if (typeof header === "string") given.push(header);
  const tokens = given.length > 0 ? given : cookieTokens(headers.cookie);
  return {
    tokens: tokens.filter((token) => TOKEN_PATTERN.test(token)).slice(0, MAX_COOKIES),
    isInQuery,
    isOfCookie: given.length === 0,
    path: isInQuery ? `${pathname}${kept.length > 0 ? `?${kept.join("&")}` : ""}` : url,
  };
}

/** The Set-Cookie that lets a browser in on this host alone, until the URL expires. */
export function tokenCookie(protocol: "http:" | "https:", token: string, leftMs: number): string {
  const secure = protocol === "https:" ? "; Secure" : "";
  const seconds = Math.max(0, Math.floor(leftMs / 1_000));
  // Lax, not Strict: a link in a chat leads to the page, and the page's own requests bring it; other sites' do not.
  return `${COOKIE_NAMES[protocol]}=${token}; Path=/; HttpOnly; SameSite=Lax; Max-Age=${seconds}${secure}`;
}

/** A Cookie header without ours; undefined when nothing is left. */
export function withoutTokenCookie(cookie: string): string | undefined {
  const kept = cookie.split(";").filter((pair) => !isOurs(pair));
  const text = kept.join(";").trim();
  return text === "" ? undefined : text;
}

/**
 * A Set-Cookie of a sandbox as it may pass: for its own host alone, since a cookie for the whole domain would reach other
 * sandboxes. @returns undefined for one of our name
 */
export function ownHostCookie(setCookie: string): string | undefined {
  const [pair = "", ...attributes] = setCookie.split(";");
  if (isOurs(pair)) return undefined;
  return [pair, ...attributes.filter((attribute) => !/^\s*domain\s*=/i.test(attribute))].join(";");
}

function cookieTokens(cookie: string | undefined): string[] {
  if (cookie === undefined) return [];
  const pairs = cookie.split(";").filter(isOurs);
  const isPlantable = (pair: string): boolean => !pair.trim().startsWith(COOKIE_NAMES["https:"]);
  // Those that no sibling can have planted first: of so many only some are looked at.
  return [...pairs.filter((pair) => !isPlantable(pair)), ...pairs.filter(isPlantable)].map((pair) =>
    pair.slice(pair.indexOf("=") + 1).trim(),
  );
}

function isOurs(pair: string): boolean {
  const name = pair.split("=", 1)[0]?.trim();
  return name === COOKIE_NAMES["http:"] || name === COOKIE_NAMES["https:"];
}
