import { CodedError } from "@torpor/protocol";
import { type Answer, type Call, routeOf } from "../http/api.ts";
import { idempotencySlot } from "../store/idempotency-store.ts";
import type { RouteDeps } from "./route-deps.ts";

/**
 * Makes something whose secret is shown this once and kept nowhere. With an `Idempotency-Key` it is made once; a repeat is
 * refused instead of answered.
 */
export async function onceShown(
  deps: RouteDeps,
  call: Call<unknown, unknown>,
  what: "API key" | "webhook" | "preview URL",
  make: () => Promise<unknown>,
): Promise<Answer> {
  const { idempotencyKey } = call;
  if (idempotencyKey === undefined) return { status: 201, body: await make() };
  const list = {
    "API key": "GET /v1/keys",
    webhook: "GET /v1/webhooks",
    "preview URL": "GET /v1/sandboxes/{id}/urls",
  }[what];
  let made: unknown;
  await deps.idempotency.run({
    slot: idempotencySlot(call.caller.scope, routeOf(call.incoming), idempotencyKey),
    body: call.rawBody,
    resumable: false,
    signal: call.signal,
    run: async () => {
      made = await make();
      return { status: 201, body: null };
    },
    recover: () =>
      Promise.reject(
        new CodedError(
          "conflict",
          `Idempotency-Key ${idempotencyKey} made ${what === "API key" ? "an" : "a"} ${what} already, which is shown only once; remove it (${list} shows it) and make another with a new Idempotency-Key`,
        ),
      ),
  });
  return { status: 201, body: made };
}
