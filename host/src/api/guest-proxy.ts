import { type IncomingMessage, request, type ServerResponse } from "node:http";
import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import { joinConnections, requestUpgrade, responseInsteadOfUpgrade, switchProtocols } from "@torpor/base";
import { CODE_PORT, CodedError, GUEST_PORT, PORT_HEADERS } from "@torpor/protocol";
import type { Activity } from "../machine/activity.ts";
import type { Machines } from "../machine/machines.ts";
import { answerHeaders, type GuestTarget, requestHeaders } from "./guest-headers.ts";

const WATCH_PATH = "/filesystem.Filesystem/WatchDir";
/** What lasts as long as a process or a client does, and is gone on with after a freeze. */
const STREAM_PATHS = [WATCH_PATH, "/process.Process/Start", "/process.Process/Connect"];
/** A connection to a port of the owner's own is made within this, milliseconds: there is only the machine between. */
const CONNECT_WITHIN_MS = 10_000;
/** A program asked for an upgrade says yes or no within this, milliseconds. */
const UPGRADE_WITHIN_MS = 60_000;
/** How long a request that is not to wake waits for a snapshot, a sleep or a wake under way, milliseconds. */
const SETTLE_WITHIN_MS = 15_000;

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
  const reached = await reach(machines, target, incoming);
  if (outgoing.destroyed) return; // the caller has left meanwhile: nobody wants this done any more
  const releases =
    passive || target.path.startsWith(WATCH_PATH) ? [] : [beginUse(reached.activity, target, incoming)];
  if (!isResumable(target, incoming)) releases.push(reached.activity.beginBrief());
  try {
    await pass(machines, target, reached, incoming, outgoing);
  } finally {
    for (const release of releases) release();
  }
}

/**
 * Connects a caller who asks for an upgrade (a WebSocket, say) with a port of the guest, and holds the machine awake until
 * one of the two hangs up. A freeze cuts the connection: none that leads outside can go into an image.
 *
 * @throws CodedError as {@link proxyToGuest}, before anything was sent
 */
export async function tunnelToGuest(
  machines: Machines,
  target: GuestTarget,
  incoming: IncomingMessage,
  connection: Duplex,
  head: Buffer,
): Promise<void> {
  const { upgrade } = incoming.headers;
  if (target.port === GUEST_PORT || upgrade === undefined)
    throw new CodedError("permission_denied", "the guest agent has no WebSockets");
  const left = new AbortController();
  connection.once("close", () => left.abort());
  const { entry, guest, activity } = await reach(machines, target, incoming);
  const release = beginUse(activity, target, incoming);
  try {
    const outcome = await requestUpgrade({
      host: guest.address,
      port: target.port,
      ...(incoming.method === undefined ? {} : { method: incoming.method }),
      path: target.path,
      headers: { ...requestHeaders(target, entry, guest, incoming), connection: "Upgrade", upgrade },
      agent: guest.portAgent,
      headTimeoutMs: UPGRADE_WITHIN_MS,
      signal: left.signal,
    }).catch((error: unknown) => {
      throw unreachable(machines, target, error instanceof Error ? error : new Error(String(error)));
    });
    if (outcome.kind === "answered") {
      await answerWith(outcome.answer, responseInsteadOfUpgrade(incoming, connection));
      return;
    }
    const { socket } = outcome;
    const forget = guest.holdTunnel(socket);
    try {
      switchProtocols(connection, {
        ...answerHeaders(outcome.headers),
        connection: "Upgrade",
        upgrade: outcome.headers.upgrade ?? upgrade,
      });
      if (head.length > 0) socket.write(head);
      if (outcome.head.length > 0) connection.write(outcome.head);
      await joinConnections(connection as Socket, socket);
    } finally {
      forget();
    }
  } finally {
    release();
  }
}

/** Whether the caller goes on with it after a freeze. */
function isResumable({ path }: GuestTarget, { headers }: IncomingMessage): boolean {
  return (
    headers[PORT_HEADERS.resumable] !== undefined || STREAM_PATHS.some((stream) => path.startsWith(stream))
  );
}

type Reached = ReturnType<Machines["reach"]>;

/** The machine, awake; whether it may be woken for it, the request says. */
async function reach(
  machines: Machines,
  target: GuestTarget,
  { headers }: IncomingMessage,
): Promise<Reached> {
  if (headers["x-torpor-passive"] === "1") return machines.reach(target.machineId);
  if (headers[PORT_HEADERS.wake] !== "never") return await machines.awaken(target.machineId);
  if (machines.get(target.machineId)?.state !== "paused")
    await machines.settled(target.machineId, SETTLE_WITHIN_MS, new AbortController().signal);
  return machines.reach(target.machineId);
}

/** The owner's use of a sandbox, by what it goes to: a command the server names, the agent, or a port of the owner's own. */
function beginUse(
  activity: Activity,
  { port, path }: GuestTarget,
  { method = "", headers }: IncomingMessage,
): () => void {
  const execId = headers["x-torpor-exec"];
  if (port === GUEST_PORT && typeof execId === "string") return activity.begin("exec", execId.slice(0, 100));
  // Queries may hold what is secret, and what this says is shown.
  const what = `${method} ${(path.split("?", 1)[0] ?? "").slice(0, 100)}`;
  return port === GUEST_PORT ? activity.begin("request", what) : activity.begin("port", `${port} ${what}`);
}

function pass(
  machines: Machines,
  target: GuestTarget,
  { entry, guest }: Reached,
  incoming: IncomingMessage,
  outgoing: ServerResponse,
): Promise<void> {
  const headers = requestHeaders(target, entry, guest, incoming);
  return new Promise((resolve, reject) => {
    let answered = false;
    const upstream = request(
      {
        host: guest.address,
        port: target.port,
        method: incoming.method,
        path: target.path,
        headers,
        agent: isOwnersPort(target.port) ? guest.portAgent : guest.agent,
      },
      (answer) => {
        answered = true;
        answerWith(answer, outgoing).then(resolve, (error: unknown) => {
          upstream.destroy();
          reject(unreachable(machines, target, error instanceof Error ? error : new Error(String(error))));
        });
      },
    );
    upstream.setNoDelay(true);
    if (isOwnersPort(target.port)) giveUpConnecting(upstream);
    upstream.on("error", (error) => {
      if (answered || outgoing.destroyed) {
        outgoing.destroy();
        resolve();
        return;
      }
      reject(unreachable(machines, target, error));
    });
    upstream.on("close", () => {
      // Also what is no answer, such as an upgrade nobody asked for.
      if (!answered)
        reject(unreachable(machines, target, new Error("it closed the connection without an answer")));
    });
    outgoing.on("close", () => {
      upstream.destroy();
      resolve();
    });
    incoming.on("error", () => upstream.destroy());
    incoming.pipe(upstream);
  });
}

/** Sends an answer of the guest on. Resolves when it is sent. @throws Error when it is none that HTTP can carry */
function answerWith(answer: IncomingMessage, outgoing: ServerResponse): Promise<void> {
  return new Promise((resolve, reject) => {
    try {
      outgoing.writeHead(answer.statusCode ?? 502, answerHeaders(answer.headers));
    } catch (error) {
      answer.destroy();
      reject(error instanceof Error ? error : new Error(String(error)));
      return;
    }
    outgoing.flushHeaders();
    answer.pipe(outgoing);
    answer.on("error", () => outgoing.destroy());
    outgoing.on("finish", resolve);
    outgoing.on("close", resolve);
  });
}

/** A program that does not accept connections leaves them in the queue of its socket for minutes. */
function giveUpConnecting(upstream: ReturnType<typeof request>): void {
  upstream.once("socket", (socket) => {
    if (!socket.connecting) return;
    const timer = setTimeout(
      () => upstream.destroy(new Error(`it accepted no connection within ${CONNECT_WITHIN_MS} ms`)),
      CONNECT_WITHIN_MS,
    );
    const stop = (): void => clearTimeout(timer);
    socket.once("connect", stop).once("close", stop);
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

/** Ports where programs of the owner's own listen; the others are those of the agent and of the code server. */
function isOwnersPort(port: number): boolean {
  return port !== GUEST_PORT && port !== CODE_PORT;
}
