import { createHash } from "node:crypto";
import type { IdempotencySlot } from "../store/idempotency-store.ts";

/** What tells a slot from every other. */
export function slotName({ account, tenant, route, key }: IdempotencySlot): string {
  return JSON.stringify([account, tenant, route, key]);
}

/**
 * What the guest knows a keyed request by, the same whenever it is sent again, so that it takes no write to the store. The body
 * is part of it, so that a server that remembers nothing gives no wrong answer; the hash of it, cut and with the name, tells
 * nothing.
 */
export function keyedId(slot: IdempotencySlot, body: Buffer): string {
  const bodyHash = createHash("sha256").update(body).digest("hex");
  return `k${createHash("sha256").update(slotName(slot)).update(bodyHash).digest("hex").slice(0, 40)}`;
}
