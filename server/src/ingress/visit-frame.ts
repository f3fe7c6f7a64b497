import type { IncomingMessage, ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import { type Clock, type Log, responseInsteadOfUpgrade } from "@torpor/base";
import type { CodedError } from "@torpor/protocol";
import { toCodedError } from "../http/answer.ts";
import { requestIdOf } from "../http/api.ts";
import type { Metrics } from "../http/metrics.ts";

export interface VisitFrameOptions {
  /** What visits, and requests for upgrades, are called in the metrics; in the log the words are joined by a dot. */
  names: { visit: string; upgrade: string };
  metrics: Metrics;
  clock: Clock;
  log: Log;
}

/** What more the log line of a visit says. */
export type VisitNotes = Record<string, unknown>;

/** Answers a visit that is not let in. */
type Refuse = (outgoing: ServerResponse, error: CodedError, requestId: string) => void;

/** What is around every visit of a sandbox's port: its log line, its metric, and the answer to one that is not let in. */
export class VisitFrame {
  readonly #options: VisitFrameOptions;

  constructor(options: VisitFrameOptions) {
    this.#options = options;
  }

  /** Answers one request. Never throws. */
  async serve(
    incoming: IncomingMessage,
    outgoing: ServerResponse,
    visit: (notes: VisitNotes) => Promise<void>,
    refuse: Refuse,
  ): Promise<void> {
    const { clock, log, metrics, names } = this.#options;
    const requestId = requestIdOf(incoming);
    const notes: VisitNotes = {};
    const startedAt = clock.monotonic();
    outgoing.once("close", () => {
      const durationMs = Math.round((clock.monotonic() - startedAt) * 1_000) / 1_000;
      const status = outgoing.writableFinished ? outgoing.statusCode : 499;
      // Statuses are the sandbox's to choose: by their class, there are few.
      metrics.request(names.visit, status === 499 ? 499 : status - (status % 100), durationMs);
      // No path: what stands in it is the sandbox's.
      const { method } = incoming;
      log.info({ op: opOf(names.visit), outcome: status, durationMs, requestId, method, ...notes });
    });
    try {
      await visit(notes);
    } catch (error) {
      const coded = toCodedError(error, log, requestId);
      notes["code"] = coded.code;
      refuse(outgoing, coded, requestId);
    }
  }

  /** Answers one request for an upgrade. Never throws. */
  async upgrade(
    incoming: IncomingMessage,
    connection: Duplex,
    visit: (notes: VisitNotes) => Promise<void>,
    refuse: Refuse,
  ): Promise<void> {
    const { clock, log, metrics, names } = this.#options;
    const requestId = requestIdOf(incoming);
    const notes: VisitNotes = {};
    const startedAt = clock.monotonic();
    let outcome: number | string = "closed";
    try {
      await visit(notes);
    } catch (error) {
      const coded = toCodedError(error, log, requestId);
      outcome = coded.status;
      notes["code"] = coded.code;
      if (connection.writable) refuse(responseInsteadOfUpgrade(incoming, connection), coded, requestId);
    }
    const durationMs = clock.monotonic() - startedAt;
    metrics.request(names.upgrade, typeof outcome === "number" ? outcome : 101, durationMs);
    log.info({ op: opOf(names.upgrade), outcome, durationMs, requestId, ...notes });
  }
}

const opOf = (name: string): string => name.replaceAll(" ", ".");
