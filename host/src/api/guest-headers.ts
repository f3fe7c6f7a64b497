import type { IncomingHttpHeaders, IncomingMessage } from "node:http";
import { HOP_BY_HOP } from "@torpor/base";
import { CodedError, GUEST_PORT, PORT_HEADERS } from "@torpor/protocol";
import type { MachineEntry } from "../journal.ts";
import type { GuestClient } from "../machine/guest-client.ts";

export interface GuestTarget {
  machineId: string;
  port: number;
  /** Path and query as the guest sees them. */
  path: string;
}

/** Paths of the agent that only the host may use; the rest of /torpor/ is not proxied at all. */
const HOST_PATHS = ["/torpor/archive", "/torpor/state", "/torpor/stats"];
/** Never passed on: the host's token is none of the guest's business, and the guest's tokens are the host's to add. */
const PRIVATE_HEADERS = new Set([
  "authorization",
  "x-access-token",
  "x-torpor-host-key",
  "x-torpor-exec",
  "host",
]);

/**
 * What a request carries into the guest: the caller's headers less what is between caller and host, and for the agent the
 * machine's tokens; the Authorization that the server passes on names the user it is to act as. A program of the owner's own
 * sees the Host and the Authorization that the server passes on for it.
 *
 * @throws CodedError permission_denied for a path of the agent that is the host's alone
 */
export function requestHeaders(
  { port, path }: GuestTarget,
  entry: Readonly<MachineEntry>,
  guest: GuestClient,
  incoming: IncomingMessage,
): Record<string, string | string[]> {
  const headers: Record<string, string | string[]> = {};
  for (const [name, value] of Object.entries(incoming.headers)) {
    if (value === undefined || HOP_BY_HOP.has(name) || PRIVATE_HEADERS.has(name)) continue;
    if (port !== GUEST_PORT && name.startsWith("x-torpor-")) continue;
    headers[name] = value;
  }
  // Said outright: Node would leave it out of a GET or a DELETE, and its body would be read as the next request.
  if (incoming.headers["transfer-encoding"] !== undefined) headers["transfer-encoding"] = "chunked";
  const authorization = incoming.headers[PORT_HEADERS.authorization];
  if (typeof authorization === "string") headers["authorization"] = authorization;
  if (port !== GUEST_PORT) {
    const host = incoming.headers[PORT_HEADERS.host];
    headers["host"] = typeof host === "string" ? host : `localhost:${port}`;
    return headers;
  }
  headers["x-access-token"] = entry.accessToken;
  const [pathname = "/"] = path.split("?", 1);
  if (pathname.startsWith("/torpor/")) {
    if (!HOST_PATHS.includes(pathname))
      throw new CodedError("permission_denied", `${pathname} of the guest agent is for its host alone`);
    headers["x-torpor-host-key"] = entry.hostKey;
  }
  headers["host"] = `${guest.address}:${port}`;
  return headers;
}

/** What an answer carries out of the guest. That an answer is the host's own is not for a program inside to say. */
export function answerHeaders(headers: IncomingHttpHeaders): Record<string, string | string[]> {
  const kept: Record<string, string | string[]> = {};
  for (const [name, value] of Object.entries(headers)) {
    if (value !== undefined && !HOP_BY_HOP.has(name) && name !== PORT_HEADERS.isHostsOwn) kept[name] = value;
  }
  return kept;
}
