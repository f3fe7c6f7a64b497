import type { IncomingMessage, ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import { setImmediate } from "node:timers/promises";
import type { Clock, Log } from "@torpor/base";
import { CODE_PORT, CodedError, GUEST_PORT, isEnding } from "@torpor/protocol";
import { unbrokenExecute } from "../../guest/unbroken-execute.ts";
import { unbrokenStarts } from "../../guest/unbroken-start.ts";
import type { Placement } from "../../host/placement.ts";
import type { Metrics } from "../../http/metrics.ts";
import { ownerAnswerHeaders, previewAnswerHeaders } from "../../ingress/port-headers.ts";
import type { PortProxy, PortTarget } from "../../ingress/port-proxy.ts";
import { VisitFrame, type VisitNotes } from "../../ingress/visit-frame.ts";
import type { ActivityLog } from "../../sandbox/activity-log.ts";
import { sandboxEnded, sandboxNotFound } from "../../sandbox/sandbox-errors.ts";
import type { Sandboxes } from "../../sandbox/sandboxes.ts";
import { type SandboxRecord, wakesForWork } from "../../store/sandbox-record.ts";
import type { VisitStore } from "../../store/visit-store.ts";
import { type E2bTokens, isToken } from "../e2b-tokens.ts";
import { isPaused, isPublic } from "../shown-e2b-sandbox.ts";
import { isExpired, isSignature, isSignedWith, type SignedUrl, signedPath, signedUrl } from "./signed-url.ts";
import { refuseVisit } from "./visit-refusal.ts";
import { type VisitTarget, VisitTargets } from "./visit-target.ts";

export interface E2bIngressOptions {
  /** Domain, with port, below which `{port}-{sandbox}` is a port of a sandbox; undefined for none. */
  domain: string | undefined;
  store: Pick<VisitStore, "find" | "livingIds">;
  tokens: Pick<E2bTokens, "agentTokenOf" | "agentToken" | "trafficToken">;
  proxy: PortProxy;
  placement: Placement;
  activity: ActivityLog;
  sandboxes: Pick<Sandboxes, "wakeForVisit">;
  metrics: Metrics;
  clock: Clock;
  log: Log;
}

/** A visit that is let in. */
interface Visit {
  sandbox: SandboxRecord;
  target: PortTarget;
}

/** What of the agent is for owners: its other paths are the host's. */
const AGENT_PATHS =
  /^\/(?:health|metrics|envs|files(?:\/compose)?|process\.Process\/\w+|filesystem\.Filesystem\/\w+)$/;
/** What starts a process and follows it, and what follows one that runs. */
const PROCESS_STREAMS = new Map<string, "start" | "connect">([
  ["/process.Process/Start", "start"],
  ["/process.Process/Connect", "connect"],
]);
/** Runs code in the code interpreter. */
const EXECUTE_PATH = "/execute";
/** Of the code interpreter; running code needs the sandbox's token. */
const CONTEXT_PATHS = /^\/contexts(?:\/|$)/;
/** What lets a request in is not for programs inside to see. */
const WITHHELD = new Set([
  "e2b-sandbox-id",
  "e2b-sandbox-port",
  "e2b-traffic-access-token",
  "x-access-token",
]);
const TRAFFIC_HEADER = "e2b-traffic-access-token";
/** Sandboxes whose tokens are tried for a signature before other requests have their turn. */
const TRIED_AT_ONCE = 200;

/** How a request that is let in goes on. */
interface Entry {
  /** Path and query for the program inside. */
  path: string;
  /** Whether it only looks whether the sandbox runs: that neither wakes it nor counts as use of it. */
  isLook: boolean;
}

/**
 * Passes what E2B's clients send to sandboxes: to the agent and the code interpreter with the sandbox's token, to its other
 * ports as its create said. A sandbox is named by headers, by the Host, or by the signature of a URL for a file.
 */
export class E2bIngress {
  readonly #options: E2bIngressOptions;
  readonly #targets: VisitTargets;
  readonly #frame: VisitFrame;

  constructor(options: E2bIngressOptions) {
    this.#options = options;
    this.#targets = new VisitTargets(options.domain);
    this.#frame = new VisitFrame({ ...options, names: { visit: "e2b visit", upgrade: "e2b upgrade" } });
  }

  /** Whether a request is for a sandbox, as E2B's clients name one. */
  owns(incoming: IncomingMessage): boolean {
    return this.#targets.names(incoming) || signedUrl(incoming.method, incoming.url ?? "") !== undefined;
  }

  /** Answers one request. Never throws. */
  serve(incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> {
    let named: VisitTarget | undefined;
    return this.#frame.serve(
      incoming,
      outgoing,
      async (notes) => {
        named = await this.#named(incoming);
        const { sandbox, target } = await this.#visit(incoming, named, notes);
        await this.#options.proxy.forward(sandbox, target, incoming, outgoing);
      },
      (answer, error, requestId) => refuseVisit(incoming, answer, error, named, requestId),
    );
  }

  /** Answers one request for an upgrade. Never throws. */
  upgrade(incoming: IncomingMessage, connection: Duplex, head: Buffer): Promise<void> {
    let named: VisitTarget | undefined;
    return this.#frame.upgrade(
      incoming,
      connection,
      async (notes) => {
        named = await this.#named(incoming);
        const { sandbox, target } = await this.#visit(incoming, named, notes);
        await this.#options.proxy.tunnel(sandbox, target, incoming, connection, head);
      },
      (answer, error, requestId) => refuseVisit(incoming, answer, error, named, requestId),
    );
  }

  /** Which port it is for: as it says, or by whose token its URL is signed with. */
  async #named(incoming: IncomingMessage): Promise<VisitTarget> {
    const named = this.#targets.of(incoming);
    if (named !== undefined) return named;
    const { store, tokens } = this.#options;
    const signed = signedUrl(incoming.method, incoming.url ?? "");
    if (signed === undefined || !isSignature(signed)) throw invalidSignature();
    this.#requireInTime(signed);
    for (const [index, sandboxId] of (await store.livingIds()).entries()) {
      if (index % TRIED_AT_ONCE === TRIED_AT_ONCE - 1) await setImmediate();
      if (isSignedWith(signed, tokens.agentTokenOf(sandboxId)))
        return { sandboxId, port: GUEST_PORT, isOfHost: false };
    }
    throw invalidSignature();
  }

  async #visit(incoming: IncomingMessage, named: VisitTarget, notes: VisitNotes): Promise<Visit> {
    const { store, placement, sandboxes, activity } = this.#options;
    const sandbox = await store.find(named.sandboxId);
    if (sandbox === undefined) throw sandboxNotFound(named.sandboxId);
    if (isEnding(sandbox.state)) throw sandboxEnded(sandbox);
    const { path, isLook } = this.#requireEntry(incoming, named, sandbox);
    Object.assign(notes, { sandboxId: sandbox.id, tenant: sandbox.tenant, port: named.port });
    if (sandbox.state === "creating")
      throw new CodedError("conflict", "The sandbox is still being created; try again shortly");
    if (isPaused(sandbox) && (isLook || !wakesForWork(sandbox)))
      throw new CodedError("wrong_state", "The sandbox is paused; connect to it to resume it");
    const host = await placement.of(sandbox.host);
    if (!isLook) {
      await sandboxes.wakeForVisit(sandbox, host);
      activity.note(sandbox);
    }
    const mask = sandbox.e2b?.maskRequestHost?.replaceAll("${PORT}", String(named.port));
    const seenHost = mask ?? (named.isOfHost ? incoming.headers.host : undefined);
    const isEncrypted = "encrypted" in incoming.socket;
    const stream = PROCESS_STREAMS.get(path);
    return {
      sandbox,
      target: {
        client: host.client,
        port: named.port,
        path,
        wake: wakesForWork(sandbox) && !isLook,
        isPassive: isLook,
        forwarding: {
          protocol: isEncrypted ? "https:" : "http:",
          ...(seenHost === undefined ? {} : { host: seenHost }),
          passAuthorization: true,
          withheld: WITHHELD,
        },
        answerHeaders: named.isOfHost ? previewAnswerHeaders : ownerAnswerHeaders,
        ...(named.port === GUEST_PORT && stream !== undefined
          ? { bodyOf: unbrokenStarts(host.client, sandbox, stream) }
          : {}),
        ...(named.port === CODE_PORT && path === EXECUTE_PATH && incoming.method === "POST"
          ? unbrokenExecute({ record: sandbox, host })
          : {}),
      },
    };
  }

  /** @throws CodedError unless the request brings what its port asks for */
  #requireEntry(incoming: IncomingMessage, { port }: VisitTarget, sandbox: SandboxRecord): Entry {
    const { tokens } = this.#options;
    const { headers, method, url = "/" } = incoming;
    const entry: Entry = { path: url, isLook: false };
    const [pathname = "/"] = url.split("?", 1);
    // E2B's client brings no token with its calls for contexts: those are as open as the owner's own ports.
    const isOfContexts =
      port === CODE_PORT && CONTEXT_PATHS.test(pathname) && headers["x-access-token"] === undefined;
    if (isOfContexts || (port !== GUEST_PORT && port !== CODE_PORT)) {
      if (sandbox.e2b === null)
        throw new CodedError(
          "permission_denied",
          "the ports of this sandbox are not public: it was not made through E2B's API; ask its owner for a preview URL",
        );
      if (!isPublic(sandbox) && !isToken(headers[TRAFFIC_HEADER], tokens.trafficToken(sandbox)))
        throw new CodedError("permission_denied", "the e2b-traffic-access-token is missing or wrong");
      return entry;
    }
    if (port === GUEST_PORT && !AGENT_PATHS.test(pathname))
      throw new CodedError("not_found", `${pathname.slice(0, 100)} is no path of the sandbox's agent`);
    const token = tokens.agentToken(sandbox);
    if (isToken(headers["x-access-token"], token)) return entry;
    if (port === GUEST_PORT && pathname === "/health" && method === "GET" && sandbox.e2b !== null)
      return { path: "/health", isLook: true };
    const signed = port === GUEST_PORT ? signedUrl(method, url) : undefined;
    if (headers["x-access-token"] !== undefined || signed === undefined)
      throw new CodedError("unauthenticated", "the X-Access-Token of this sandbox is missing or wrong");
    if (!isSignedWith(signed, token)) throw invalidSignature();
    this.#requireInTime(signed);
    return { path: signedPath(signed), isLook: false };
  }

  /** @throws CodedError unauthenticated */
  #requireInTime(signed: SignedUrl): void {
    if (isExpired(signed, this.#options.clock.now()))
      throw new CodedError("unauthenticated", "signature is already expired");
  }
}

function invalidSignature(): CodedError {
  return new CodedError("unauthenticated", "invalid signature");
}
