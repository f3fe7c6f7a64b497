import type { IncomingMessage, ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import { type Clock, type Log, responseInsteadOfUpgrade } from "@torpor/base";
import { CodedError, isEnding } from "@torpor/protocol";
import type { Placement } from "../host/placement.ts";
import { toCodedError } from "../http/answer.ts";
import { requestIdOf } from "../http/api.ts";
import type { Metrics } from "../http/metrics.ts";
import type { ActivityLog } from "../sandbox/activity-log.ts";
import type { Sandboxes } from "../sandbox/sandboxes.ts";
import { sandboxEnded } from "../sandbox/sandbox-errors.ts";
import type { PreviewUrlStore } from "../store/preview-url-store.ts";
import type { SandboxRecord } from "../store/sandbox-record.ts";
import { previewAnswerHeaders } from "./port-headers.ts";
import { type PortProxy, type PortTarget, requirePort } from "./port-proxy.ts";
import type { PreviewOrigin, PreviewTarget } from "./preview-origin.ts";
import { hashPreviewToken, type PresentedTokens, presentedTokens, tokenCookie } from "./preview-token.ts";
import { isPageLoad, refuseVisitor } from "./refusal.ts";
import { VisitWatch } from "./visit-watch.ts";

export interface PreviewIngressOptions {
  /** The port in it is known once the server listens. */
  origin: () => PreviewOrigin;
  store: PreviewUrlStore;
  proxy: PortProxy;
  placement: Placement;
  activity: ActivityLog;
  sandboxes: Pick<Sandboxes, "wakeForVisit">;
  metrics: Metrics;
  clock: Clock;
  log: Log;
}

/** A visit that a token has opened. */
interface Visit {
  sandbox: SandboxRecord;
  target: PortTarget;
  urlId: string;
  token: string;
  leftMs: number;
}

/**
 * Serves visitors of preview URLs: whoever holds the token of one reaches that port of that sandbox, and nothing else. The
 * hosts below the preview domain are its own: nothing of the API is served there, and nothing of a sandbox elsewhere.
 */
export class PreviewIngress {
  readonly #options: PreviewIngressOptions;
  readonly #watch: VisitWatch;

  constructor(options: PreviewIngressOptions) {
    this.#options = options;
    this.#watch = new VisitWatch(options.store, options.clock, options.log);
  }

  close(): void {
    this.#watch.close();
  }

  /** Whether a request is for a preview, by its Host. */
  owns(incoming: IncomingMessage): boolean {
    return this.#options.origin().targetOf(incoming.headers.host) !== undefined;
  }

  /** Answers one request. Never throws. */
  async serve(incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> {
    const requestId = requestIdOf(incoming);
    const notes: Record<string, unknown> = {};
    this.#logWhenDone(incoming, outgoing, requestId, notes);
    try {
      const presented = presentedTokens(incoming);
      const { sandbox, target, urlId, token, leftMs } = await this.#visit(incoming, presented, notes);
      if (presented.isInQuery && isPageLoad(incoming)) {
        // Neither the address bar nor a referrer is to keep the token.
        const { protocol } = this.#options.origin();
        outgoing.writeHead(302, {
          location: `${protocol}//${incoming.headers.host}${presented.path}`,
          "set-cookie": tokenCookie(protocol, token, leftMs),
          "referrer-policy": "no-referrer",
          "cache-control": "no-store",
          "content-length": 0,
        });
        outgoing.end();
        return;
      }
      const release = this.#watch.hold(urlId, () => outgoing.destroy());
      try {
        await this.#options.proxy.forward(sandbox, target, incoming, outgoing);
      } finally {
        release();
      }
    } catch (error) {
      const coded = toCodedError(error, this.#options.log, requestId);
      notes["code"] = coded.code;
      refuseVisitor(incoming, outgoing, coded, requestId);
    }
  }

  /** Answers one request for an upgrade. Never throws. */
  async upgrade(incoming: IncomingMessage, connection: Duplex, head: Buffer): Promise<void> {
    const { clock, log, metrics } = this.#options;
    const requestId = requestIdOf(incoming);
    const notes: Record<string, unknown> = {};
    const startedAt = clock.monotonic();
    let outcome: number | string = "closed";
    try {
      const { sandbox, target, urlId } = await this.#visit(incoming, presentedTokens(incoming), notes);
      const release = this.#watch.hold(urlId, () => connection.destroy());
      try {
        await this.#options.proxy.tunnel(sandbox, target, incoming, connection, head);
      } finally {
        release();
      }
    } catch (error) {
      const coded = toCodedError(error, log, requestId);
      outcome = coded.status;
      notes["code"] = coded.code;
      if (connection.writable)
        refuseVisitor(incoming, responseInsteadOfUpgrade(incoming, connection), coded, requestId);
    }
    const durationMs = clock.monotonic() - startedAt;
    metrics.request("preview upgrade", typeof outcome === "number" ? outcome : 101, durationMs);
    log.info({ op: "preview.upgrade", outcome, durationMs, requestId, ...notes });
  }

  async #visit(
    incoming: IncomingMessage,
    { tokens, path, isInQuery, isOfCookie }: PresentedTokens,
    notes: Record<string, unknown>,
  ): Promise<Visit> {
    const { store, placement, activity, sandboxes, clock } = this.#options;
    const origin = this.#options.origin();
    const named = origin.targetOf(incoming.headers.host);
    if (named === undefined || named === "unknown" || !path.startsWith("/"))
      throw new CodedError(
        "not_found",
        "this address names no preview; those of a sandbox are made with POST /v1/sandboxes/{id}/ports/{port}/url",
      );
    requirePort(String(named.port));
    if (isOfCookie && origin.isForeign(incoming.headers, named)) throw noEntry(named);
    for (const token of tokens) {
      const now = clock.now();
      const opened = await store.redeem(hashPreviewToken(token), named, now);
      if (opened === undefined) continue;
      const { url, sandbox } = opened;
      Object.assign(notes, {
        sandboxId: sandbox.id,
        tenant: sandbox.tenant,
        port: url.port,
        previewUrl: url.id,
      });
      if (isEnding(sandbox.state)) throw sandboxEnded(sandbox);
      const host = await placement.of(sandbox.host);
      if (url.autoWake) await sandboxes.wakeForVisit(sandbox, host);
      if (url.autoWake || sandbox.state === "running") activity.note(sandbox);
      return {
        token,
        sandbox,
        urlId: url.id,
        leftMs: url.expiresAt - now,
        target: {
          client: host.client,
          port: url.port,
          path,
          wake: url.autoWake,
          forwarding: {
            protocol: origin.protocol,
            host: incoming.headers.host ?? origin.hostOf(named),
            passAuthorization: true,
          },
          answerHeaders: (headers) => ({
            ...previewAnswerHeaders(headers),
            ...(isInQuery ? { "referrer-policy": "no-referrer" } : {}),
          }),
        },
      };
    }
    throw noEntry(named);
  }

  #logWhenDone(
    incoming: IncomingMessage,
    outgoing: ServerResponse,
    requestId: string,
    notes: Record<string, unknown>,
  ): void {
    const { clock, log, metrics } = this.#options;
    const startedAt = clock.monotonic();
    outgoing.once("close", () => {
      const durationMs = Math.round((clock.monotonic() - startedAt) * 1_000) / 1_000;
      const status = outgoing.writableFinished ? outgoing.statusCode : 499;
      // Statuses are the sandbox's to choose: by their class, there are few.
      metrics.request("preview", status === 499 ? 499 : status - (status % 100), durationMs);
      // No path: what stands in it is the sandbox's.
      log.info({ op: "preview", outcome: status, durationMs, requestId, method: incoming.method, ...notes });
    });
  }
}

/** The one answer for no token, a wrong one and one that counts no more, whether or not there is such a sandbox. */
function noEntry({ port }: PreviewTarget): CodedError {
  return new CodedError(
    "unauthenticated",
    `the link to this preview of port ${port} is missing, wrong, expired or revoked; ask its owner for a new one (programs send its token as X-Torpor-Token, or as torpor_token in the query)`,
  );
}
