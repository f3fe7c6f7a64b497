import { answeredList } from "./answered-list.ts";
import type { CallOptions, KeyedCallOptions } from "./call-options.ts";
import { NotFoundError } from "./errors.ts";
import { requestJson } from "./request-json.ts";
import { pathSegment } from "./request-path.ts";
import type { EventType } from "./sandbox-event.ts";
import { dateOrNull } from "./sandbox-info.ts";
import type { Transport } from "./transport.ts";
import type { WebhookWire } from "./wire.ts";

/** A URL that events are sent to; its requests are proven with `verifyWebhook`. */
export interface Webhook {
  id: string;
  url: string;
  /** Types of events that are sent; empty for all. */
  types: EventType[];
  description: string;
  /** Only this tenant's events are sent; null for all of the account's. */
  tenant: string | null;
  enabled: boolean;
  /** Why the server disabled it; null when it did not. */
  disabledBecause: string | null;
  createdAt: Date;
  /** Deliveries under way, or waiting for their next try. */
  pending: number;
  /** Deliveries given up after the last try. */
  failed: number;
  lastDeliveredAt: Date | null;
  lastError: string | null;
}

export interface WebhookCreateOptions extends KeyedCallOptions {
  /** Public and https, unless whoever runs the server has opened others. */
  url: string;
  /** Default: all. */
  types?: readonly EventType[] | undefined;
  description?: string | undefined;
}

/** What to change; what is left out stays. */
export interface WebhookChanges {
  url?: string | undefined;
  /** Empty: all. */
  types?: readonly EventType[] | undefined;
  description?: string | undefined;
  /** Enabled again, it gets what happens from then on. */
  enabled?: boolean | undefined;
}

const NOT_SENT: ReadonlySet<string> = new Set(["signal", "timeoutMs", "idempotencyKey"]);

/** `client.webhooks`; needs a key with the scope `admin`. One that is bound to a tenant has that tenant's alone. */
export class Webhooks {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Makes a webhook for what happens from now on; `secret`, which signs its requests, is shown this once. */
  async create(options: WebhookCreateOptions): Promise<Webhook & { secret: string }> {
    const { signal, timeoutMs, idempotencyKey } = options;
    const wire = await this.#transport.json<WebhookWire & { secret: string }>({
      method: "POST",
      path: "/v1/webhooks",
      json: requestJson(options, NOT_SENT),
      signal,
      timeoutMs,
      idempotencyKey,
    });
    return { ...webhookFromWire(wire), secret: wire.secret };
  }

  /** The newest first. */
  async list({ signal, timeoutMs }: CallOptions = {}): Promise<Webhook[]> {
    const answer = await this.#transport.json({ method: "GET", path: "/v1/webhooks", signal, timeoutMs });
    return answeredList<WebhookWire>(answer, "webhooks").map(webhookFromWire);
  }

  /** @throws NotFoundError */
  async get(id: string, { signal, timeoutMs }: CallOptions = {}): Promise<Webhook> {
    return webhookFromWire(
      await this.#transport.json<WebhookWire>({ method: "GET", path: pathOf(id), signal, timeoutMs }),
    );
  }

  /** @throws NotFoundError */
  async update(
    id: string,
    changes: WebhookChanges,
    { signal, timeoutMs }: CallOptions = {},
  ): Promise<Webhook> {
    const wire = await this.#transport.json<WebhookWire>({
      method: "PATCH",
      path: pathOf(id),
      json: requestJson(changes, NOT_SENT),
      signal,
      timeoutMs,
    });
    return webhookFromWire(wire);
  }

  /** Deletes it, and drops what was still to be sent to it. Returns false when there was none. */
  async delete(id: string, { signal, timeoutMs }: CallOptions = {}): Promise<boolean> {
    try {
      await this.#transport.text({ method: "DELETE", path: pathOf(id), signal, timeoutMs });
      return true;
    } catch (error) {
      if (error instanceof NotFoundError) return false;
      throw error;
    }
  }
}

const pathOf = (id: string): string => `/v1/webhooks/${pathSegment("id", id)}`;

function webhookFromWire(wire: WebhookWire): Webhook {
  return {
    id: wire.id,
    url: wire.url,
    types: wire.types,
    description: wire.description,
    tenant: wire.tenant,
    enabled: wire.enabled,
    disabledBecause: wire.disabled_because,
    createdAt: new Date(wire.created_at),
    pending: wire.pending,
    failed: wire.failed,
    lastDeliveredAt: dateOrNull(wire.last_delivered_at),
    lastError: wire.last_error,
  };
}
