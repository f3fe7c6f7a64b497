import { type IncomingMessage, request, type ServerResponse } from "node:http";
import { CodedError, GUEST_PORT } from "@torpor/protocol";
import type { MachineEntry } from "../journal.ts";
import type { Activity } from "../machine/activity.ts";
import type { GuestClient } from "../machine/guest-client.ts";
import type { Machines } from "../machine/machines.ts";

/** Paths of the agent that only the host may use; the rest of /torpor/ is not proxied at all. */
const HOST_PATHS = ["/torpor/archive", "/torpor/state", "/torpor/stats"];
const WATCH_PATH = "/filesystem.Filesystem/WatchDir";
/** What lasts as long as a process or a client does, and is gone on with after a freeze. */
const STREAM_PATHS = [WATCH_PATH, "/process.Process/Start", "/process.Process/Connect"];
const HOP_BY_HOP = new Set([
  "connection",
  "keep-alive",
  "proxy-authenticate",
  "proxy-authorization",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
]);
/** Never passed on: the host's token is none of the guest's business, and the guest's tokens are the host's to add. */
const PRIVATE_HEADERS = new Set([
  "authorization",
  "x-access-token",
  "x-torpor-host-key",
  "x-torpor-exec",
  "host",
]);

export interface GuestTarget {
  machineId: string;
  port: number;
  /** Path and query as the guest sees them. */
  path: string;
}

/**
 * Passes a request to a port of a machine's guest, streaming both ways; a slow reader slows the writer. When the
 * caller leaves, the guest's connection is cut; when the machine dies in mid-answer, the caller's is.
 *
 * @throws CodedError `sandbox_not_found`, `sandbox_ended`, `permission_denied` (a path of the host alone), or
 *   `guest_unavailable` when the port refuses
 */
export async function proxyToGuest(
  machines: Machines,
  target: GuestTarget,
  incoming: IncomingMessage,
  outgoing: ServerResponse,
): Promise<void> {
  // Looking at a machine neither wakes it nor counts as use of it; nor does a silent watch on its files.
  const passive = incoming.headers["x-torpor-passive"] === "1";
  const { entry, guest, activity } = passive
    ? machines.reach(target.machineId)
    : await machines.awaken(target.machineId);
  if (outgoing.destroyed) return; // the caller has left meanwhile: nobody wants this done any more
  const releases =
    passive || target.path.startsWith(WATCH_PATH) ? [] : [beginUse(activity, target, incoming)];
  if (!STREAM_PATHS.some((path) => target.path.startsWith(path))) releases.push(activity.beginBrief());
  try {
    await pass(machines, target, entry, guest, incoming, outgoing);
  } finally {
    for (const release of releases) release();
  }
}

/** The owner's use of a sandbox, by what it goes to: a command the server names, the agent, or a port of the owner's own. */
function beginUse(
  activity: Activity,
  { port, path }: GuestTarget,
  { method = "", headers }: IncomingMessage,
): () => void {
  const execId = headers["x-torpor-exec"];
  if (port === GUEST_PORT && typeof execId === "string") return activity.begin("exec", execId.slice(0, 100));
  const what = `${method} ${path.slice(0, 100)}`;
  return port === GUEST_PORT ? activity.begin("request", what) : activity.begin("port", `${port} ${what}`);
}

function pass(
  machines: Machines,
  target: GuestTarget,
  entry: Readonly<MachineEntry>,
  guest: GuestClient,
  incoming: IncomingMessage,
  outgoing: ServerResponse,
): Promise<void> {
  const path = target.path.split("?", 1)[0] ?? "/";
  const headers: Record<string, string | string[]> = {};
  for (const [name, value] of Object.entries(incoming.headers)) {
    if (value !== undefined && !HOP_BY_HOP.has(name) && !PRIVATE_HEADERS.has(name)) headers[name] = value;
  }
  if (target.port === GUEST_PORT) {
    headers["x-access-token"] = entry.accessToken;
    if (path.startsWith("/torpor/")) {
      if (!HOST_PATHS.includes(path))
        throw new CodedError("permission_denied", `${path} of the guest agent is for its host alone`);
      headers["x-torpor-host-key"] = entry.hostKey;
    }
  }
  headers.host = `${guest.address}:${target.port}`;
  return new Promise((resolve, reject) => {
    let answered = false;
    const upstream = request(
      {
        host: guest.address,
        port: target.port,
        method: incoming.method,
        path: target.path,
        headers,
        agent: guest.agent,
      },
      (answer) => {
        answered = true;
        const answerHeaders = Object.fromEntries(
          Object.entries(answer.headers).filter(([name]) => !HOP_BY_HOP.has(name)),
        );
        outgoing.writeHead(answer.statusCode ?? 502, answerHeaders);
        outgoing.flushHeaders();
        answer.pipe(outgoing);
        answer.on("error", () => outgoing.destroy());
        outgoing.on("finish", resolve);
      },
    );
    upstream.setNoDelay(true);
    upstream.on("error", (error) => {
      if (answered || outgoing.destroyed) {
        outgoing.destroy();
        resolve();
        return;
      }
      reject(unreachable(machines, target, error));
    });
    outgoing.on("close", () => {
      upstream.destroy();
      resolve();
    });
    incoming.on("error", () => upstream.destroy());
    incoming.pipe(upstream);
  });
}

function unreachable(machines: Machines, target: GuestTarget, cause: Error): CodedError {
  try {
    machines.reach(target.machineId);
  } catch (ended) {
    if (ended instanceof CodedError) return ended;
  }
  return new CodedError(
    "guest_unavailable",
    `port ${target.port} of sandbox ${target.machineId} does not answer: ${cause.message}`,
    {
      details: { port: target.port },
      cause,
    },
  );
}
