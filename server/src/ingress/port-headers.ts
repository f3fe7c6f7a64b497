import type { IncomingHttpHeaders, IncomingMessage, OutgoingHttpHeaders } from "node:http";
import { HOP_BY_HOP } from "@torpor/base";
import { PORT_HEADERS } from "@torpor/protocol";
import { ownHostCookie, withoutTokenCookie } from "./preview-token.ts";

const API_KEY = /\b(?:tp_[A-Za-z0-9]{40}|e2b_[0-9a-f]{86})\b/;
/** What an answer could do to its whole domain, beyond its own origin. */
const REACHING_OUT = new Set(["alt-svc", "clear-site-data"]);
/** What an answer could do to the API's origin, on which the owner's requests are answered. */
const REACHING_THE_API = new Set([
  ...REACHING_OUT,
  "content-security-policy",
  "content-security-policy-report-only",
  "nel",
  "report-to",
  "reporting-endpoints",
  "service-worker-allowed",
  "set-cookie",
  "strict-transport-security",
  "x-request-id",
]);

/** What the program in the sandbox is told of the request that it cannot see. */
export interface Forwarding {
  protocol: "http:" | "https:";
  /** The Host it sees; without it, `localhost` and its port. */
  host?: string;
  /** What of the path was taken off before it. */
  prefix?: string;
  /** Whether the caller's Authorization is the program's: the API's own is not. */
  passAuthorization: boolean;
  /** Names of headers that are not the program's to see. Default none. */
  withheld?: ReadonlySet<string>;
}

/** The headers of a request on their way to the host: ours taken off, X-Forwarded-* put on. */
export function requestHeaders(incoming: IncomingMessage, forwarding: Forwarding): OutgoingHttpHeaders {
  const { headers, socket } = incoming;
  const passed: OutgoingHttpHeaders = {};
  const named = (headers.connection ?? "")
    .toLowerCase()
    .split(",")
    .map((name) => name.trim());
  for (const [name, value] of Object.entries(headers)) {
    if (value === undefined || HOP_BY_HOP.has(name) || forwarding.withheld?.has(name) === true) continue;
    if (named.includes(name) && name !== "content-length") continue; // without it a body would go on unframed
    if (name.startsWith("x-torpor-") || name === "host" || name === "authorization" || name === "cookie")
      continue;
    if (name === "x-api-key" && (!forwarding.passAuthorization || API_KEY.test(String(value)))) continue;
    passed[name] = value;
  }
  // Said outright: Node would leave it out of a GET or a DELETE, and its body would be read as the next request.
  if (headers["transfer-encoding"] !== undefined) passed["transfer-encoding"] = "chunked";
  const cookie = headers.cookie === undefined ? undefined : withoutTokenCookie(headers.cookie);
  if (cookie !== undefined) passed["cookie"] = cookie;
  const { authorization } = headers;
  // An API key that was sent here by mistake is not for what runs in a sandbox.
  if (authorization !== undefined && forwarding.passAuthorization && !API_KEY.test(authorization))
    passed[PORT_HEADERS.authorization] = authorization;
  if (forwarding.host !== undefined) passed[PORT_HEADERS.host] = forwarding.host;
  const before = headers["x-forwarded-for"];
  const address = socket.remoteAddress ?? "unknown";
  passed["x-forwarded-for"] = before === undefined ? address : `${String(before)}, ${address}`;
  passed["x-forwarded-proto"] = forwarding.protocol.slice(0, -1);
  passed["x-forwarded-host"] = headers.host ?? "";
  if (forwarding.prefix !== undefined) passed["x-forwarded-prefix"] = forwarding.prefix;
  return passed;
}

/** The headers of a sandbox's answer on an origin of its own: all but what would reach beyond it. */
export function previewAnswerHeaders(headers: IncomingHttpHeaders): OutgoingHttpHeaders {
  const passed = without(headers, REACHING_OUT);
  const cookies = headers["set-cookie"]?.map(ownHostCookie).filter((cookie) => cookie !== undefined);
  delete passed["set-cookie"];
  if (cookies !== undefined && cookies.length > 0) passed["set-cookie"] = cookies;
  return passed;
}

/**
 * The headers of a sandbox's answer on the API's origin, which is for programs: a browser that is brought to show it runs
 * nothing of it and keeps nothing of it.
 */
export function ownerAnswerHeaders(headers: IncomingHttpHeaders): OutgoingHttpHeaders {
  return {
    ...without(headers, REACHING_THE_API),
    "content-security-policy": "sandbox; default-src 'none'",
    "x-content-type-options": "nosniff",
  };
}

function without(headers: IncomingHttpHeaders, dropped: ReadonlySet<string>): OutgoingHttpHeaders {
  return Object.fromEntries(
    Object.entries(headers).filter(
      ([name]) => !HOP_BY_HOP.has(name) && !dropped.has(name) && !name.startsWith("x-torpor-"),
    ),
  );
}
