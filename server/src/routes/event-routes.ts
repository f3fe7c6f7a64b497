import {
  CodedError,
  EVENT_TYPES,
  eventIdSchema,
  eventSeq,
  type EventType,
  sandboxEventSchema,
  tenantSchema,
} from "@torpor/protocol";
import { z } from "zod";
import { EventStreamWriter } from "../event/event-writer.ts";
import { type Call, SENT } from "../http/api.ts";
import { isEventType, type EventFilter } from "../store/event-store.ts";
import type { RouteDeps } from "./route-deps.ts";

/** Longest silence on a stream, milliseconds; then it says that all is well. */
const HEARTBEAT_MS = 15_000;
/** Events read from the log at once. */
const PAGE_EVENTS = 200;

const typesSchema = z
  .string()
  .transform((text, context): readonly EventType[] => {
    const types = text.split(",").map((type) => type.trim());
    if (types.every(isEventType)) return types;
    context.addIssue({
      code: "custom",
      message: `must be types separated by commas out of ${EVENT_TYPES.join(", ")}`,
    });
    return z.NEVER;
  })
  .describe("Types separated by commas. Default: all.");

const streamQuery = {
  after: z
    .union([z.literal("now"), z.literal("oldest"), eventIdSchema], {
      error: "must be now, oldest, or the id of an event such as evt_42",
    })
    .optional()
    .describe(
      "Where to begin: `now`, `oldest` (all that is kept) or after the event of this id. The `Last-Event-ID` header counts more.",
    ),
  types: typesSchema.optional(),
  follow: z
    .enum(["true", "false", "1", "0"])
    .optional()
    .describe("Whether to go on with what comes (default), or to end after what is there."),
};
const accountQuery = z.strictObject({ ...streamQuery, tenant: tenantSchema.optional() });
const sandboxQuery = z.strictObject(streamQuery);

const STREAM_DESCRIPTION =
  "One event for every move of a sandbox's record, written in the move's own transaction: none is missing and none is sent before it is true. Server-sent events; JSON lines with `Accept: application/x-ndjson`. `id` names an event: send the last one as `Last-Event-ID` (browsers do) and the stream goes on after it. Every 15 s of silence there is a heartbeat, which moves that id too. Kept for 7 days and at most the newest 1,000,000; a place older than that answers 410 `events_expired`. Watching wakes nothing and counts as no activity.";

/** What happens to sandboxes, as it happens. */
export function addEventRoutes(deps: RouteDeps): void {
  const { api, sandboxes } = deps;
  api.add(
    {
      method: "get",
      path: "/v1/events",
      tag: "events",
      summary: "Follow the events of all sandboxes the key may see",
      description: `${STREAM_DESCRIPTION} Begins with what comes from now on unless told otherwise.`,
      scope: "sandbox:read",
      query: accountQuery,
      answers: {
        200: { description: "Events", schema: sandboxEventSchema, mediaType: "text/event-stream" },
      },
    },
    async (call) => {
      const { tenant } = call.query;
      const filter = tenant === undefined ? {} : { tenant };
      return await serveEvents(deps, call, await firstPlace(deps, call, "now"), filter);
    },
  );

  api.add(
    {
      method: "get",
      path: "/v1/sandboxes/{id}/events",
      tag: "events",
      summary: "Follow the events of one sandbox",
      description: `${STREAM_DESCRIPTION} Begins with the oldest kept unless told otherwise, so that its whole life is told.`,
      scope: "sandbox:read",
      query: sandboxQuery,
      answers: {
        200: { description: "Events", schema: sandboxEventSchema, mediaType: "text/event-stream" },
      },
    },
    async (call) => {
      const { id } = await sandboxes.require(call.caller.scope, call.param("id"));
      return await serveEvents(deps, call, await firstPlace(deps, call, "oldest"), { sandboxId: id });
    },
  );
}

type StreamCall = Call<
  { after?: string | undefined; types?: readonly EventType[] | undefined; follow?: string | undefined },
  unknown
>;

/** The number of the event the stream begins after. @throws CodedError invalid_request, events_expired */
async function firstPlace(
  { eventStore }: RouteDeps,
  call: StreamCall,
  unless: "now" | "oldest",
): Promise<number> {
  const header = call.incoming.headers["last-event-id"];
  const isResumed = typeof header === "string" && header !== "";
  const after = isResumed ? header : (call.query.after ?? unless);
  if (after === "now") return await eventStore.lastSeq();
  if (after === "oldest") return await eventStore.floor();
  if (!eventIdSchema.safeParse(after).success) {
    throw new CodedError(
      "invalid_request",
      `Last-Event-ID must be the id of an event as this server gave it out, such as evt_42; it is ${JSON.stringify(after.slice(0, 40))}`,
    );
  }
  const seq = eventSeq(after);
  await eventStore.requireKept(seq);
  return seq;
}

async function serveEvents(
  { eventStore, eventFeed, clock }: RouteDeps,
  call: StreamCall,
  first: number,
  filter: Omit<EventFilter, "after" | "limit">,
): Promise<typeof SENT> {
  const { outgoing, signal, query } = call;
  const wanted = query.types === undefined ? undefined : new Set(query.types);
  const follow = query.follow !== "false" && query.follow !== "0";
  const form = call.incoming.headers.accept?.includes("application/x-ndjson") === true ? "ndjson" : "sse";
  const writer = new EventStreamWriter(outgoing, signal, form);
  if (call.incoming.method === "HEAD") {
    writer.end();
    return SENT;
  }
  try {
    // The place comes first, so that a client cut off before its first event resumes without a gap.
    await writer.position(first);
    let after = first;
    let checkedAt = clock.monotonic();
    for (;;) {
      const { version } = eventFeed;
      const newest = await eventStore.lastSeq();
      const page = await eventStore.read(call.caller.scope, { ...filter, after, limit: PAGE_EVENTS });
      // Looked at after the reading: what was to be read next may have been forgotten, and a gap is never passed over.
      if (after < (await eventStore.floor())) await eventStore.requireKept(after);
      for (const logged of page)
        if (wanted === undefined || wanted.has(logged.event.type)) await writer.event(logged);
      const isWhole = page.length < PAGE_EVENTS;
      after = page.at(-1)?.seq ?? after;
      if (isWhole) {
        after = Math.max(after, newest);
        if (!follow) break;
      }
      const sinceCheckMs = clock.monotonic() - checkedAt;
      const waited = isWhole
        ? await eventFeed.wait(version, Math.max(HEARTBEAT_MS - sinceCheckMs, 0), signal)
        : "changed";
      if (waited === "closed") break;
      if (clock.monotonic() - checkedAt >= HEARTBEAT_MS) {
        await writer.position(after);
        checkedAt = clock.monotonic();
      }
    }
    writer.end();
  } catch (error) {
    // Once it has begun there is no status left to tell: the client resumes, and its new request gets the reason.
    if (!outgoing.destroyed) call.note({ err: error });
    outgoing.destroy();
  }
  return SENT;
}
