import { z } from "zod";
import { sandboxIdSchema } from "./ids.ts";
import { SANDBOX_STATES } from "./states.ts";

/**
 * What happens to sandboxes, as data. One event for every move of a record, of type `sandbox.<state it entered>`,
 * `sandbox.updated` when its clocks, its shape or its network policy changed, and `sandbox.idle_awake`, once in each idle
 * spell, when it has been awake for long without being used: `changes` tells since when, and what that costs. Budgets tell
 * when most of one is spent, and when all is.
 */
export const EVENT_TYPES = [
  ...SANDBOX_STATES.map((state) => `sandbox.${state}` as const),
  "sandbox.updated",
  "sandbox.idle_awake",
  "budget.warning",
  "budget.exhausted",
] as const;
export type EventType = (typeof EVENT_TYPES)[number];

/** Id of an event: `evt_` and its number in the log. A later event has the larger number. */
export const eventIdSchema = z
  .string()
  .regex(/^evt_\d{1,15}$/, "must be an event id as this server gave it out, such as evt_42");

/** The id of event number `seq`. */
export function eventId(seq: number): string {
  return `evt_${seq}`;
}

/** The number of an event id that {@link eventIdSchema} accepts. */
export function eventSeq(id: string): number {
  return Number(id.slice("evt_".length));
}

/** One event, on the streams and in webhooks. */
export const sandboxEventSchema = z.object({
  id: eventIdSchema,
  type: z.enum(EVENT_TYPES),
  /** RFC 3339, UTC. */
  at: z.string(),
  /** Null for a budget's. */
  sandbox_id: sandboxIdSchema.nullable(),
  /** The sandbox's name; null where it has none, and of a sandbox that is kept no longer. */
  name: z.string().nullable(),
  /** The sandbox's; empty of one that is kept no longer, and for a budget's. */
  metadata: z.record(z.string(), z.string()),
  /** Null for that of an account's budget. */
  tenant: z.string().nullable(),
  generation: z.number().int().nullable(),
  /** State after the event. */
  state: z.enum(SANDBOX_STATES).nullable(),
  /** State before it; null for the first event of a sandbox, the same as `state` when that did not change. */
  previous_state: z.enum(SANDBOX_STATES).nullable(),
  /** Why it ended or is ending; null while it lives. */
  reason: z.string().nullable(),
  /** Fields of the sandbox that changed with it, with their new values; of a budget what it is and how much is spent. */
  changes: z.record(z.string(), z.unknown()),
});
export type SandboxEvent = z.infer<typeof sandboxEventSchema>;

/** What carries an event's id, the time of sending and the signature in a webhook (Standard Webhooks 1.0). */
export const WEBHOOK_HEADERS = {
  id: "webhook-id",
  timestamp: "webhook-timestamp",
  signature: "webhook-signature",
} as const;

const webhookUrlSchema = z
  .string()
  .max(2048)
  .refine((text) => {
    try {
      const url = new URL(text);
      return (
        (url.protocol === "https:" || url.protocol === "http:") && url.username === "" && url.password === ""
      );
    } catch {
      return false;
    }
  }, "must be an absolute https:// (or http://) URL without user name and password");

const webhookTypesSchema = z
  .array(z.enum(EVENT_TYPES))
  .max(EVENT_TYPES.length)
  .describe("Types of events that are sent; empty for all.");

/** Body of `POST /v1/webhooks`. */
export const createWebhookSchema = z.strictObject({
  url: webhookUrlSchema,
  types: webhookTypesSchema.default([]),
  description: z.string().max(256).default(""),
});

export type CreateWebhookRequest = z.output<typeof createWebhookSchema>;

/** Body of `PATCH /v1/webhooks/{webhook_id}`: what is left out stays. */
export const updateWebhookSchema = z
  .strictObject({
    url: webhookUrlSchema.optional(),
    types: webhookTypesSchema.optional(),
    description: z.string().max(256).optional(),
    enabled: z.boolean().optional().describe("One that is disabled misses what happens meanwhile."),
  })
  .refine(
    (value) => Object.values(value).some((field) => field !== undefined),
    "is empty: name at least one of url, types, description, enabled",
  );

export type UpdateWebhookRequest = z.output<typeof updateWebhookSchema>;

/** A webhook as the API shows it. */
export const webhookSchema = z.object({
  id: z.string(),
  url: z.string(),
  types: z.array(z.enum(EVENT_TYPES)),
  description: z.string(),
  /** Only events of this tenant are sent; null for all of the account's. */
  tenant: z.string().nullable(),
  enabled: z.boolean(),
  /** Why the server disabled it; null when it did not. */
  disabled_because: z.string().nullable(),
  created_at: z.string(),
  /** Deliveries under way or waiting for their next try. */
  pending: z.number().int(),
  /** Deliveries given up after the last try; kept as long as their events. */
  failed: z.number().int(),
  last_delivered_at: z.string().nullable(),
  last_error: z.string().nullable(),
});
export type Webhook = z.infer<typeof webhookSchema>;

/** Answer of `POST /v1/webhooks`: the only time the secret is shown. */
export const createdWebhookSchema = webhookSchema.extend({
  /** `whsec_` and base64: the key of the signatures. */
  secret: z.string(),
});
