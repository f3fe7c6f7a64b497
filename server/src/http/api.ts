import { createHash } from "node:crypto";
import type { IncomingMessage, ServerResponse } from "node:http";
import type { HttpBindings } from "@hono/node-server";
import { OpenAPIHono } from "@hono/zod-openapi";
import type { Clock, Log, SecretValues } from "@torpor/base";
import { CodedError, LIMITS } from "@torpor/protocol";
import type { Context } from "hono";
import type { z } from "zod";
import type { Authenticator, Caller } from "../auth/authenticator.ts";
import type { KeyWatch } from "../auth/key-watch.ts";
import type { DenialLog } from "../ledger/denial-log.ts";
import { type Asked, noteDenial } from "../ledger/note-denial.ts";
import { idempotencySlot } from "../store/idempotency-store.ts";
import { sendError, sendJson, type ShowError, toCodedError } from "./answer.ts";
import { serialId } from "../serial-id.ts";
import { checkInput } from "./check-input.ts";
import { type EndpointDefinition, pathPattern, referenceEntries, routerPath } from "./endpoint.ts";
import { Idempotency } from "./idempotency.ts";
import type { Metrics } from "./metrics.ts";
import { parseJson, readBody } from "./read-body.ts";

/** One request on its way through an endpoint. */
export interface Call<Query, Body> {
  readonly incoming: IncomingMessage;
  readonly outgoing: ServerResponse;
  readonly requestId: string;
  readonly query: Query;
  readonly body: Body;
  /** The body as it came; empty for an endpoint without a JSON body. */
  readonly rawBody: Buffer;
  /** Value of a variable part of the path. */
  param(name: string): string;
  /** Who asks. @throws Error on a route that is open to all. */
  readonly caller: Caller;
  readonly idempotencyKey: string | undefined;
  /** Aborts when the client leaves before it has the whole answer, and when its API key is no longer good. */
  readonly signal: AbortSignal;
  /** Adds to the request's one log line. */
  note(fields: Record<string, unknown>): void;
}

/** A JSON answer, or `sent` when the endpoint has written its own. */
export type Answer = { status: number; body: unknown; headers?: Record<string, string> } | typeof SENT;

/** Says that an endpoint has written its own answer. */
export const SENT = "sent";

export interface ApiOptions {
  authenticator: Authenticator;
  /** Told of what callers asked for that is not theirs. */
  denials: DenialLog;
  keyWatch: KeyWatch;
  idempotency: Idempotency;
  metrics: Metrics;
  /** Values that neither the log nor an error answer tells. */
  secretValues: SecretValues;
  clock: Clock;
  log: Log;
}

interface PathMethods {
  pattern: RegExp;
  methods: Set<string>;
}

/** How long after a request its secrets are still kept from the log, milliseconds: what it left to be undone takes less. */
const REDACTED_FOR_MS = 60_000;
const REQUEST_ID_PATTERN = /^[\w.:-]{1,64}$/;
const ALREADY_SENT = { headers: { "x-hono-already-sent": "true" } };

/**
 * The HTTP edge: routes, and what every request goes through on its way to one. Endpoints answer on Node's own
 * response: bodies stream with its backpressure and a JSON answer costs one write.
 */
export class Api {
  readonly app: OpenAPIHono<{ Bindings: HttpBindings }>;
  readonly #options: ApiOptions;
  readonly #paths = new Map<string, PathMethods>();

  constructor(options: ApiOptions) {
    this.#options = options;
    this.app = new OpenAPIHono<{ Bindings: HttpBindings }>();
  }

  /** Adds one endpoint and its entry in the reference. */
  add<Query extends z.ZodType = z.ZodNever, Body extends z.ZodType = z.ZodNever>(
    definition: EndpointDefinition<Query, Body>,
    run: (call: Call<z.output<Query>, z.output<Body>>) => Promise<Answer>,
  ): void {
    const { method } = definition;
    for (const entry of referenceEntries(definition)) this.app.openAPIRegistry.registerPath(entry);
    const methods = this.#paths.get(definition.path) ?? {
      pattern: pathPattern(definition.path),
      methods: new Set(),
    };
    methods.methods.add(method.toUpperCase());
    if (method === "get") methods.methods.add("HEAD");
    this.#paths.set(definition.path, methods);
    const handle = (context: Context<{ Bindings: HttpBindings }>): Promise<Response> =>
      this.#handle(definition, run, context);
    if (method === "any") this.app.all(routerPath(definition.path), handle);
    else this.app.on(method.toUpperCase(), routerPath(definition.path), handle);
  }

  /** Adds the answers to what has no route. To be called once, after the last endpoint. */
  finish(): void {
    this.app.all("*", (context) => this.#unrouted(context));
  }

  async #handle<Query extends z.ZodType, Body extends z.ZodType>(
    definition: EndpointDefinition<Query, Body>,
    run: (call: Call<z.output<Query>, z.output<Body>>) => Promise<Answer>,
    context: Context<{ Bindings: HttpBindings }>,
  ): Promise<Response> {
    const { incoming, outgoing } = context.env;
    const { authenticator, keyWatch, log } = this.#options;
    const requestId = requestIdOf(incoming);
    outgoing.setHeader("x-request-id", requestId);
    const notes: Record<string, unknown> = {};
    const life: Life = { refused: false };
    const route = `${definition.method.toUpperCase()} ${definition.path}`;
    let asked: Asked | undefined;
    this.#logWhenDone(route, incoming, outgoing, requestId, notes, life);
    try {
      const caller =
        definition.scope === null
          ? undefined
          : await authenticator.authenticate(incoming.headers, definition.scope, route);
      if (caller !== undefined)
        asked = { key: caller.key, route, names: context.req.param(), body: undefined };
      if (caller?.key.tenant != null) notes["tenant"] = caller.key.tenant;
      if (caller !== undefined) {
        life.release = keyWatch.hold(caller.key, (refusal) => {
          notes["code"] = refusal.code;
          cutOff(incoming, outgoing, life, refusal, requestId, definition.showError);
        });
      }
      const id = context.req.param("id");
      if (id !== undefined) notes["sandboxId"] = id.slice(0, 80);
      const query =
        definition.query === undefined ? undefined : checkInput(definition.query, queryOf(context), "query");
      const idempotencyKey =
        definition.method === "post" ? Idempotency.keyOf(incoming.headers["idempotency-key"]) : undefined;
      let rawBody: Buffer = Buffer.alloc(0);
      let body: unknown;
      if (definition.body !== undefined) {
        rawBody = await readBody(incoming, definition.maxBodyBytes ?? LIMITS.maxJsonBodyBytes);
        const given = parseJson(rawBody, incoming.headers["content-type"]);
        this.#keepSecret(given, outgoing);
        body = checkInput(definition.body, given, "body");
        if (asked !== undefined) asked.body = body;
      }
      const answer = await run(
        makeCall(context, {
          requestId,
          query,
          body,
          rawBody,
          caller,
          idempotencyKey,
          notes,
          life,
        }),
      );
      if (answer !== SENT) sendJson(incoming, outgoing, answer.status, answer.body, answer.headers);
    } catch (error) {
      const coded = toCodedError(error, log, requestId);
      notes["code"] = coded.code;
      if (coded.status >= 500) notes["err"] = coded;
      if (asked !== undefined) noteDenial(this.#options.denials, asked, coded);
      const redact = (text: string): string => this.#options.secretValues.redact(text);
      sendError(incoming, outgoing, coded, requestId, {}, redact, definition.showError);
    }
    return new Response(null, ALREADY_SENT);
  }

  /**
   * Runs a POST once per `Idempotency-Key`, or plainly when it carries none.
   *
   * @param resumable whether it can go on from where a server that died left it.
   */
  async once(
    call: Call<unknown, unknown>,
    run: () => Promise<{ status: number; body: unknown }>,
    resumable: boolean,
  ): Promise<Answer> {
    if (call.idempotencyKey === undefined) return await run();
    const kept = await this.#options.idempotency.run({
      slot: idempotencySlot(call.caller.scope, routeOf(call.incoming), call.idempotencyKey),
      body: call.rawBody,
      resumable,
      signal: call.signal,
      run: async () => {
        const { status, body } = await run();
        return { status, body: JSON.stringify(body) };
      },
    });
    return keptAnswer(kept);
  }

  /** What comes as `secrets` is told by no log line and no error while the request is under way, and shortly after. */
  #keepSecret(body: unknown, outgoing: ServerResponse): void {
    if (typeof body !== "object" || body === null || !("secrets" in body)) return;
    const { secrets } = body;
    if (typeof secrets !== "object" || secrets === null) return;
    const values = Object.values(secrets).filter((value) => typeof value === "string");
    if (values.length === 0) return;
    const release = this.#options.secretValues.hold(values);
    outgoing.once("close", () => void this.#options.clock.after(REDACTED_FOR_MS, release));
  }

  #logWhenDone(
    op: string,
    incoming: IncomingMessage,
    outgoing: ServerResponse,
    requestId: string,
    notes: Record<string, unknown>,
    life?: Life,
  ): void {
    const { clock, log, metrics } = this.#options;
    const startedAt = clock.monotonic();
    outgoing.once("close", () => {
      life?.release?.();
      const durationMs = Math.round((clock.monotonic() - startedAt) * 1_000) / 1_000;
      const status = outgoing.writableFinished ? outgoing.statusCode : 499;
      metrics.request(op, status, durationMs);
      const line = { op, outcome: status, durationMs, requestId, ...notes };
      if (status >= 500) log.error(line);
      else if (op === "GET /healthz" || op === "GET /metrics") log.debug(line);
      else log.info(line);
    });
  }

  #unrouted(context: Context<{ Bindings: HttpBindings }>): Response {
    const { incoming, outgoing } = context.env;
    const requestId = requestIdOf(incoming);
    outgoing.setHeader("x-request-id", requestId);
    const { path } = context.req;
    const known = [...this.#paths.values()].filter(({ pattern }) => pattern.test(path));
    this.#logWhenDone(`${incoming.method} (no route)`, incoming, outgoing, requestId, {});
    if (known.length === 0) {
      sendError(
        incoming,
        outgoing,
        new CodedError("not_found", `there is no route ${path.slice(0, 200)}; GET /docs lists them all`),
        requestId,
      );
    } else {
      const allow = [...new Set(known.flatMap(({ methods }) => [...methods]))].sort().join(", ");
      sendError(
        incoming,
        outgoing,
        new CodedError(
          "method_not_allowed",
          `${incoming.method} is not a method of ${path.slice(0, 200)}; it has ${allow}`,
        ),
        requestId,
        { allow },
      );
    }
    return new Response(null, ALREADY_SENT);
  }
}

/** A kept answer on its way out. */
export function keptAnswer(kept: { status: number; body: string | null; replayed: boolean }): Answer {
  return {
    status: kept.status,
    body: kept.body,
    headers: kept.replayed ? { "idempotency-replayed": "true" } : {},
  };
}

/** Method and path with its query: what an `Idempotency-Key` is a key of. */
export function routeOf(incoming: IncomingMessage): string {
  const route = `${incoming.method} ${incoming.url}`;
  return route.length <= 512
    ? route
    : `${incoming.method} sha256:${createHash("sha256").update(route).digest("hex")}`;
}

/** The id of a request: the client's own if it is a plain word, else a new one. */
export function requestIdOf(incoming: IncomingMessage): string {
  const given = incoming.headers["x-request-id"];
  return typeof given === "string" && REQUEST_ID_PATTERN.test(given) ? given : serialId("req_");
}

function queryOf(context: Context): Record<string, string> {
  return context.req.query();
}

function makeCall<Query, Body>(
  context: Context<{ Bindings: HttpBindings }>,
  parts: {
    requestId: string;
    query: unknown;
    body: unknown;
    rawBody: Buffer;
    caller: Caller | undefined;
    idempotencyKey: string | undefined;
    notes: Record<string, unknown>;
    life: Life;
  },
): Call<Query, Body> {
  const { incoming, outgoing } = context.env;
  let left: AbortController | undefined;
  return {
    incoming,
    outgoing,
    requestId: parts.requestId,
    query: parts.query as Query,
    body: parts.body as Body,
    rawBody: parts.rawBody,
    idempotencyKey: parts.idempotencyKey,
    param: (name) => context.req.param(name) ?? "",
    get caller() {
      if (parts.caller === undefined) throw new Error("a route that is open to all has no caller");
      return parts.caller;
    },
    get signal() {
      if (left === undefined) {
        const controller = new AbortController();
        left = controller;
        parts.life.abort = () => controller.abort();
        if (parts.life.refused || (outgoing.destroyed && !outgoing.writableFinished)) controller.abort();
        outgoing.once("close", () => {
          if (!outgoing.writableFinished) controller.abort();
        });
      }
      return left.signal;
    },
    note: (fields) => void Object.assign(parts.notes, fields),
  };
}

/** Whether a request may go on. */
interface Life {
  /** Its API key has been revoked or has expired meanwhile. */
  refused: boolean;
  /** Stops what it does, once that listens. */
  abort?: () => void;
  /** Lets go of its key, once that is watched. */
  release?: () => void;
}

/** Ends a request whose key is no longer good: with the refusal, or by breaking off an answer that has begun. */
function cutOff(
  incoming: IncomingMessage,
  outgoing: ServerResponse,
  life: Life,
  refusal: CodedError,
  requestId: string,
  showError: ShowError | undefined,
): void {
  life.refused = true;
  if (outgoing.headersSent) outgoing.destroy();
  else sendError(incoming, outgoing, refusal, requestId, {}, undefined, showError);
  life.abort?.();
}
