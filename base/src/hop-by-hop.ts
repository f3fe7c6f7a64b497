/** Names of headers that are between two ends of one connection (RFC 9110, 7.6.1, and older ones): none of them is passed on. */
export const HOP_BY_HOP: ReadonlySet<string> = new Set([
  "connection",
  "expect",
  "keep-alive",
  "proxy-authenticate",
  "proxy-authorization",
  "proxy-connection",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
]);
