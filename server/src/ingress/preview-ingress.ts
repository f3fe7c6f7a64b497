import type { IncomingMessage, ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import type { Clock, Log } from "@torpor/base";
import { CodedError, isEnding } from "@torpor/protocol";
import type { Placement } from "../host/placement.ts";
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
import { VisitFrame, type VisitNotes } from "./visit-frame.ts";
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
  readonly #frame: VisitFrame;

  constructor(options: PreviewIngressOptions) {
    this.#options = options;
    this.#watch = new VisitWatch(options.store, options.clock, options.log);
    this.#frame = new VisitFrame({ ...options, names: { visit: "preview", upgrade: "preview upgrade" } });
  }

  close(): void {
    this.#watch.close();
  }

  /** Whether a request is for a preview, by its Host. */
  owns(incoming: IncomingMessage): boolean {
    return this.#options.origin().targetOf(incoming.headers.host) !== undefined;
  }

  /** Answers one request. Never throws. */
  serve(incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> {
    return this.#frame.serve(
      incoming,
      outgoing,
      async (notes) => {
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
      },
      (answer, error, requestId) => refuseVisitor(incoming, answer, error, requestId),
    );
  }

  /** Answers one request for an upgrade. Never throws. */
  upgrade(incoming: IncomingMessage, connection: Duplex, head: Buffer): Promise<void> {
    return this.#frame.upgrade(
      incoming,
      connection,
      async (notes) => {
        const { sandbox, target, urlId } = await this.#visit(incoming, presentedTokens(incoming), notes);
        const release = this.#watch.hold(urlId, () => connection.destroy());
        try {
          await this.#options.proxy.tunnel(sandbox, target, incoming, connection, head);
        } finally {
          release();
        }
      },
      (answer, error, requestId) => refuseVisitor(incoming, answer, error, requestId),
    );
  }

  async #visit(
    incoming: IncomingMessage,
    { tokens, path, isInQuery, isOfCookie }: PresentedTokens,
    notes: VisitNotes,
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
}

/** The one answer for no token, a wrong one and one that counts no more, whether or not there is such a sandbox. */
function noEntry({ port }: PreviewTarget): CodedError {
  return new CodedError(
    "unauthenticated",
    `the link to this preview of port ${port} is missing, wrong, expired or revoked; ask its owner for a new one (programs send its token as X-Torpor-Token, or as torpor_token in the query)`,
  );
}
