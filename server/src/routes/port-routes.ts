import type { IncomingMessage } from "node:http";
import type { Duplex } from "node:stream";
import { CodedError } from "@torpor/protocol";
import type { Caller } from "../auth/authenticator.ts";
import type { TenantScope } from "../auth/tenant-scope.ts";
import { SENT } from "../http/api.ts";
import { ownerAnswerHeaders } from "../ingress/port-headers.ts";
import { type PortTarget, requirePort } from "../ingress/port-proxy.ts";
import { noteDenial } from "../ledger/note-denial.ts";
import type { SandboxRecord } from "../store/sandbox-record.ts";
import type { RouteDeps } from "./route-deps.ts";

/** Of the path as it came: what a router resolves or decodes could name another sandbox or port than the check did. */
const PATH_PATTERN = /^(\/v1\/sandboxes\/([a-z0-9]+)\/ports\/(\d+))(\/[^?#]*)/;

/** What a WebSocket to a port is, in the terms of the reference. */
export const PORT_UPGRADE_ROUTE = "GET /v1/sandboxes/{id}/ports/{port}/{path*}";

/** Any request to a port of a sandbox, for its owner. */
export function addPortRoutes(deps: RouteDeps): void {
  deps.api.add(
    {
      method: "any",
      path: "/v1/sandboxes/{id}/ports/{port}/{path*}",
      tag: "ports",
      summary: "Reach a program that listens in a sandbox",
      description:
        "Any method and body, streamed both ways, and WebSockets. The program sees the path from behind the port, `Host: localhost:{port}` and `X-Forwarded-*`, and neither the API key nor an Authorization header. It must listen on an address other than 127.0.0.1, such as 0.0.0.0. Counts as use while the connection is open, and wakes the sandbox as work does. For programs, not for browsers: the answer comes without cookies and under `Content-Security-Policy: sandbox`, since this is the API's origin; browsers take a preview URL. The ports of the sandbox's agent (49983, 49999) are refused. A path `/url` takes no POST, which makes a preview URL.",
      scope: "sandbox:exec",
      answers: { 200: { description: "The program's own answer, of whatever status", mediaType: "*/*" } },
    },
    async (call) => {
      const { record, target } = await ownerTarget(deps, call.caller.scope, call.incoming);
      call.note({ port: target.port });
      await deps.portProxy.forward(record, target, call.incoming, call.outgoing);
      return SENT;
    },
  );
}

/** Whether a request for an upgrade is one to a port of a sandbox. */
export function isPortUpgrade({ url = "" }: IncomingMessage): boolean {
  return PATH_PATTERN.test(url);
}

/** Connects an owner's WebSocket, or whatever else is upgraded to, with a port of the sandbox. @throws CodedError */
export async function upgradeToPort(
  deps: RouteDeps,
  { scope, key }: Caller,
  incoming: IncomingMessage,
  connection: Duplex,
  head: Buffer,
): Promise<void> {
  const { record, target } = await ownerTarget(deps, scope, incoming).catch((error: unknown) => {
    const id = PATH_PATTERN.exec(incoming.url ?? "")?.[2] ?? "";
    if (error instanceof CodedError)
      noteDenial(deps.denials, { key, route: PORT_UPGRADE_ROUTE, names: { id }, body: undefined }, error);
    throw error;
  });
  await deps.portProxy.tunnel(record, target, incoming, connection, head);
}

async function ownerTarget(
  deps: RouteDeps,
  scope: TenantScope,
  incoming: IncomingMessage,
): Promise<{ record: SandboxRecord; target: PortTarget }> {
  const { url = "" } = incoming;
  const match = PATH_PATTERN.exec(url);
  if (match === null)
    throw new CodedError(
      "invalid_request",
      "the path must be /v1/sandboxes/{id}/ports/{port}/…, with id and port written plainly",
    );
  const [whole, prefix = "", id = "", port = "", path = "/"] = match;
  const { record, host } = await deps.sandboxes.requireRunning(scope, id);
  deps.activity.note(record);
  const target = {
    client: host.client,
    port: requirePort(port),
    path: `${path}${url.slice(whole.length)}`,
    wake: true,
    forwarding: { protocol: "http:" as const, prefix, passAuthorization: false },
    answerHeaders: ownerAnswerHeaders,
  };
  return { record, target };
}
