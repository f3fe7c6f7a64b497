import {
  CodedError,
  createdWebhookSchema,
  createWebhookSchema,
  randomText,
  updateWebhookSchema,
  webhookSchema,
} from "@torpor/protocol";
import { z } from "zod";
import { type Call, SENT } from "../http/api.ts";
import { refused } from "../sandbox/create-plan.ts";
import { toWebhook, type WebhookRecord } from "../store/webhook-store.ts";
import { newWebhookSecret } from "../webhook/signature.ts";
import { onceShown } from "./once-shown.ts";
import { listSchema, shownList } from "./shown-page.ts";
import type { RouteDeps } from "./route-deps.ts";

/** Webhooks of one account: each is a request an event, so there is an end to them. */
const MAX_WEBHOOKS = 50;

/** Make, list, change and delete webhooks. A key bound to a tenant makes webhooks for that tenant's events alone. */
export function addWebhookRoutes(deps: RouteDeps): void {
  const { api, webhookStore, eventStore, eventFeed, targetGuard, clock } = deps;

  const requireTarget = (url: string | undefined): void => {
    const refusal = url === undefined ? undefined : targetGuard.refusal(new URL(url));
    if (refusal !== undefined) throw refused("url", `cannot be used: ${refusal}`);
  };
  const shown = async (record: WebhookRecord): Promise<z.output<typeof webhookSchema>> =>
    toWebhook(record, await webhookStore.counts(record));

  api.add(
    {
      method: "post",
      path: "/v1/webhooks",
      tag: "events",
      summary: "Have events sent to a URL",
      description:
        "Each event is POSTed as JSON, at least once, signed as Standard Webhooks 1.0 has it: `webhook-id` (the event's id, the same at every try), `webhook-timestamp`, `webhook-signature` (`v1,` and base64 of the HMAC-SHA256 of `id.timestamp.body` with the secret shown here, this once). Any 2xx within 15 s is a yes; else it is tried again, 10 times within about 25 hours; 410 disables the webhook. Events that wait for another try hold no others up, so order is by id, not by arrival. Redirects are not followed. The target must be public and https; other addresses are for whoever runs the server to open (`TORPOR_WEBHOOK_ALLOW`).",
      scope: "admin",
      body: createWebhookSchema,
      answers: { 201: { description: "The webhook, with its secret", schema: createdWebhookSchema } },
    },
    async (call) => {
      requireTarget(call.body.url);
      return await onceShown(deps, call, "webhook", async () => await make(call));
    },
  );

  const make = async (call: Call<unknown, z.output<typeof createWebhookSchema>>): Promise<unknown> => {
    const { scope } = call.caller;
    if ((await webhookStore.countOf(scope)) >= MAX_WEBHOOKS)
      throw new CodedError(
        "conflict",
        `this account has ${MAX_WEBHOOKS} webhooks already, which is the most; delete one first`,
      );
    const secret = newWebhookSecret();
    const record = await webhookStore.insert(scope, {
      ...call.body,
      id: `wh_${randomText(20)}`,
      secret,
      afterSeq: await eventStore.lastSeq(),
      createdAt: clock.now(),
    });
    return { ...(await shown(record)), secret };
  };

  api.add(
    {
      method: "get",
      path: "/v1/webhooks",
      tag: "events",
      summary: "List webhooks, newest first",
      scope: "admin",
      answers: {
        200: {
          description: "Webhooks and how they fare, never their secrets",
          schema: listSchema(webhookSchema),
        },
      },
    },
    async (call) => {
      const { items, unreadable } = await webhookStore.list(call.caller.scope);
      return { status: 200, body: shownList({ items: await Promise.all(items.map(shown)), unreadable }) };
    },
  );

  const requireWebhook = async (call: Call<unknown, unknown>): Promise<WebhookRecord> => {
    const id = call.param("webhook_id");
    const record = await webhookStore.find(call.caller.scope, id);
    if (record === undefined)
      throw new CodedError(
        "not_found",
        `there is no webhook ${id.slice(0, 80)}; list them with GET /v1/webhooks`,
      );
    return record;
  };

  api.add(
    {
      method: "get",
      path: "/v1/webhooks/{webhook_id}",
      tag: "events",
      summary: "Get a webhook and how it fares",
      scope: "admin",
      answers: { 200: { description: "The webhook", schema: webhookSchema } },
    },
    async (call) => ({ status: 200, body: await shown(await requireWebhook(call)) }),
  );

  api.add(
    {
      method: "patch",
      path: "/v1/webhooks/{webhook_id}",
      tag: "events",
      summary: "Change a webhook",
      description: "What is left out stays. Enabled again, it gets what happens from now on.",
      scope: "admin",
      body: updateWebhookSchema,
      answers: { 200: { description: "The webhook, changed", schema: webhookSchema } },
    },
    async (call) => {
      requireTarget(call.body.url);
      const record = await requireWebhook(call);
      const isRevived = call.body.enabled === true && !record.enabled;
      if (isRevived) await webhookStore.forgetDeliveries(record);
      const changed = await webhookStore.update(record, {
        ...call.body,
        ...(isRevived ? { disabledBecause: null, afterSeq: await eventStore.lastSeq() } : {}),
      });
      eventFeed.wake();
      return { status: 200, body: await shown(changed ?? (await requireWebhook(call))) };
    },
  );

  api.add(
    {
      method: "delete",
      path: "/v1/webhooks/{webhook_id}",
      tag: "events",
      summary: "Delete a webhook",
      description: "What was still to be sent to it is dropped. Again: 404.",
      scope: "admin",
      answers: { 204: { description: "It is gone" } },
    },
    async (call) => {
      await webhookStore.remove(await requireWebhook(call));
      call.outgoing.writeHead(204).end();
      return SENT;
    },
  );
}
