import {
  CodedError,
  type CreatedPreviewUrl,
  createdPreviewUrlSchema,
  type CreatePreviewUrlRequest,
  createPreviewUrlSchema,
  type PreviewUrl,
  previewUrlSchema,
  randomText,
} from "@torpor/protocol";
import { z } from "zod";
import { requirePort } from "../ingress/port-proxy.ts";
import type { PreviewOrigin } from "../ingress/preview-origin.ts";
import { hashPreviewToken, newPreviewToken, previewLink } from "../ingress/preview-token.ts";
import type { Call } from "../http/api.ts";
import type { PreviewUrlRecord } from "../store/preview-url-store.ts";
import { onceShown } from "./once-shown.ts";
import type { RouteDeps } from "./route-deps.ts";

/** URLs of one sandbox that let visitors in at a time. */
const MAX_LIVE_URLS = 100;

/** Make, list and revoke the URLs that let visitors reach a port of a sandbox. */
export function addPreviewUrlRoutes(deps: RouteDeps): void {
  const { api, sandboxes, previewUrlStore, clock } = deps;
  api.add(
    {
      method: "post",
      path: "/v1/sandboxes/{id}/ports/{port}/url",
      tag: "ports",
      summary: "Make a preview URL",
      description:
        "Whoever has it reaches that port of that sandbox, WebSockets too, until it expires, is revoked, or the sandbox ends or the API key that made it is revoked; no other port and no other sandbox, ever. The first visit of a browser turns the token into a cookie of the preview's own host and takes it out of the URL; programs send it as `X-Torpor-Token` or leave it in the query. Visits count as use of a sandbox that is awake; one that sleeps is woken only with `auto_wake`, else the visitor is told (409). Wakes nothing itself.",
      scope: "sandbox:exec",
      body: createPreviewUrlSchema,
      answers: { 201: { description: "The URL, shown this once", schema: createdPreviewUrlSchema } },
    },
    async (call) => {
      requirePort(call.param("port"));
      return await onceShown(deps, call, "preview URL", async () => await makeUrl(deps, call));
    },
  );

  api.add(
    {
      method: "get",
      path: "/v1/sandboxes/{id}/urls",
      tag: "ports",
      summary: "List a sandbox's preview URLs, newest first",
      scope: "sandbox:read",
      answers: {
        200: {
          description: "Never their tokens. Expired and revoked ones too, for a day",
          schema: z.object({ items: z.array(previewUrlSchema) }),
        },
      },
    },
    async (call) => {
      const record = await sandboxes.require(call.caller.scope, call.param("id"));
      const urls = await previewUrlStore.list(record);
      return { status: 200, body: { items: urls.map((url) => toPreviewUrl(deps.previewOrigin(), url)) } };
    },
  );

  api.add(
    {
      method: "delete",
      path: "/v1/sandboxes/{id}/urls/{url_id}",
      tag: "ports",
      summary: "Revoke a preview URL",
      description:
        "The next request with it is refused, and connections that are open are cut within two seconds. Again: the same answer.",
      scope: "sandbox:exec",
      answers: { 200: { description: "The URL, revoked", schema: previewUrlSchema } },
    },
    async (call) => {
      const record = await sandboxes.require(call.caller.scope, call.param("id"));
      const id = call.param("url_id");
      const revoked = await previewUrlStore.revoke(record, id, clock.now());
      if (revoked === undefined)
        throw new CodedError(
          "not_found",
          `sandbox ${record.id} has no preview URL ${id.slice(0, 80)}; list them with GET /v1/sandboxes/${record.id}/urls`,
        );
      return { status: 200, body: toPreviewUrl(deps.previewOrigin(), revoked) };
    },
  );
}

async function makeUrl(
  { sandboxes, previewUrlStore, previewOrigin, clock }: RouteDeps,
  call: Call<unknown, CreatePreviewUrlRequest>,
): Promise<CreatedPreviewUrl> {
  const { scope, key } = call.caller;
  const { record } = await sandboxes.requireLiving(scope, call.param("id"));
  const now = clock.now();
  if ((await previewUrlStore.countLive(record, now)) >= MAX_LIVE_URLS)
    throw new CodedError(
      "conflict",
      `sandbox ${record.id} has ${MAX_LIVE_URLS} preview URLs in force, which is the most; revoke one first`,
    );
  const token = newPreviewToken();
  const expiresAt = now + call.body.expires_in_seconds * 1_000;
  const url = await previewUrlStore.insert(record, {
    id: `url_${randomText(20)}`,
    port: requirePort(call.param("port")),
    hash: hashPreviewToken(token),
    keyId: key.id,
    autoWake: call.body.auto_wake,
    createdAt: now,
    expiresAt: key.expiresAt === null ? expiresAt : Math.min(expiresAt, key.expiresAt),
  });
  const shown = toPreviewUrl(previewOrigin(), url);
  return { ...shown, url: previewLink(previewOrigin().protocol, shown.host, token), token };
}

function toPreviewUrl(origin: PreviewOrigin, url: PreviewUrlRecord): PreviewUrl {
  return {
    id: url.id,
    sandbox_id: url.sandboxId,
    port: url.port,
    host: origin.hostOf(url),
    auto_wake: url.autoWake,
    created_at: new Date(url.createdAt).toISOString(),
    expires_at: new Date(url.expiresAt).toISOString(),
    revoked_at: url.revokedAt === null ? null : new Date(url.revokedAt).toISOString(),
  };
}
