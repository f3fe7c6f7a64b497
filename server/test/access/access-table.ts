import { DEFAULT_PRICES } from "@torpor/protocol";

/** Who asks. Whoever should be refused for what they are not holds the scope `admin`, which stands for all but `operator`. */
export const CALLERS = [
  /** Bound to the tenant whose things they are, with no more than the scope that is needed. */
  "owner",
  /** Of the same account, bound to no tenant, with no more than the scope that is needed. */
  "account",
  /** Of the same account, bound to another tenant. */
  "other tenant",
  /** Of another account. */
  "other account",
  /** Of the first account, with the scope `operator`, which stands for all. */
  "operator",
  "revoked",
  "expired",
  /** The owner's tenant, with every scope but the needed one, those that hold it and `admin`. */
  "wrong scope",
  /** No key at all. */
  "none",
] as const;
export type CallerName = (typeof CALLERS)[number];

/** What a route is about, which decides who gets what. */
export type Kind =
  /** Open to all. */
  | "open"
  /** One thing of a tenant, named in the path: what another's key names might as well not exist. */
  | "owned"
  /** Things of whoever asks, to list or to make. */
  | "scoped"
  /** What all tenants share, to look at. */
  | "shared"
  /** What concerns every account: for keys of the operator's account that are bound to no tenant. */
  | "server"
  /** The account of whoever asks, which a key bound to a tenant does not see. */
  | "own account"
  /** One account, named in the path. */
  | "account"
  /** A tenant's share of the account of whoever asks, which another account has one of too. */
  | "share"
  /** For the scope `operator` alone. */
  | "operator";

/** Status for each caller, in the order of {@link CALLERS}; `ok`: the row's own. */
type Answers = readonly (number | "ok")[];

const DEAD_OR_NONE = [401, 401, 403, 401] as const;
/* oxfmt-ignore */
const TABLE: Record<Kind, Answers> = {
  //                owner  account tenant account operator revoked expired scope none
  open:            ["ok",  "ok",   "ok",  "ok",   "ok",    "ok", "ok", "ok", "ok"],
  owned:           ["ok",  "ok",   404,   404,    "ok",    ...DEAD_OR_NONE],
  scoped:          ["ok",  "ok",   "ok",  "ok",   "ok",    ...DEAD_OR_NONE],
  shared:          ["ok",  "ok",   "ok",  "ok",   "ok",    ...DEAD_OR_NONE],
  server:          [403,   "ok",   403,   403,    "ok",    ...DEAD_OR_NONE],
  "own account":   [403,   "ok",   403,   "ok",   "ok",    ...DEAD_OR_NONE],
  account:         [403,   "ok",   403,   404,    "ok",    ...DEAD_OR_NONE],
  share:           ["ok",  "ok",   404,   "ok",   "ok",    ...DEAD_OR_NONE],
  operator:        [403,   403,    403,   403,    "ok",    ...DEAD_OR_NONE],
};

/** What a caller gets on a route of that kind. `ok`: the row's own status. */
export function answerTo(caller: CallerName, kind: Kind): number | "ok" {
  const answer = TABLE[kind][CALLERS.indexOf(caller)];
  if (answer === undefined) throw new Error(`the table has no answer for ${caller} on ${kind}`);
  return answer;
}

/** What a path names and a case must have made before it asks. */
export type Thing =
  | "sandbox"
  | "process"
  | "context"
  | "snapshot"
  /** A snapshot by the id that E2B's API gives it. */
  | "E2B snapshot"
  | "built template"
  /** One of the built template that waits to be started. */
  | "build"
  | "files hash"
  | "alias"
  /** That the sandbox sleeps. */
  | "sleep"
  | "key"
  | "webhook"
  | "template"
  | "account"
  | "port"
  | "path"
  | "preview URL"
  | "tenant"
  | "file";

/** One route and verb. */
export interface Row {
  kind: Kind;
  /** Status for whoever may. Default 200. */
  ok?: number;
  /** With its question mark. */
  query?: string;
  /** `$unique` stands for a new word, `$tenant` for one that the caller may name. */
  json?: unknown;
  body?: string;
  headers?: Record<string, string>;
  /** What must be there. Default: what the path names. */
  needs?: readonly Thing[];
  /** The thing that the body names, as `$` and this, where the path names none. */
  names?: "template_id";
  /** The answer does not end by itself: its head is enough. */
  endless?: true;
  /** A WebSocket, which the reference does not list: 101 for whoever may. */
  webSocket?: true;
}

const HOOK = { url: "http://127.0.0.1:9/hook" };

/**
 * Every route and verb there is. The test fails when one of the reference is missing here or the other way round: a new
 * route takes one line.
 */
export const ROUTES: Record<string, Row> = {
  "GET /docs": { kind: "open" },
  "GET /healthz": { kind: "open" },
  "GET /v1/openapi.json": { kind: "open" },
  "GET /metrics": { kind: "server" },

  "POST /v1/sandboxes": { kind: "scoped", ok: 201, json: { template: "base" } },
  "POST /v1/advise": { kind: "scoped", json: { survives: false } },
  "GET /v1/sandboxes": { kind: "scoped", query: "?state=all" },
  "GET /v1/sandboxes/{id}": { kind: "owned" },
  "DELETE /v1/sandboxes/{id}": { kind: "owned" },
  "GET /v1/sandboxes/{id}/lifecycle": { kind: "owned" },
  "PATCH /v1/sandboxes/{id}/lifecycle": { kind: "owned", json: { ttl_seconds: 60 } },
  "PATCH /v1/sandboxes/{id}/network": { kind: "owned", json: { network: "none" } },
  "POST /v1/sandboxes/{id}/pause": { kind: "owned" },
  "POST /v1/sandboxes/{id}/resume": { kind: "owned" },
  "POST /v1/sandboxes/{id}/hibernate": { kind: "owned" },
  "POST /v1/sandboxes/{id}/wake": { kind: "owned" },
  "POST /v1/sandboxes/{id}/promote": { kind: "owned", json: { persistent: true, reason: "kept" } },
  "POST /v1/sandboxes/{id}/fork": { kind: "owned", ok: 201, json: { count: 1 } },
  "POST /v1/sandboxes/{id}/snapshots": { kind: "owned", ok: 201, json: {} },
  "GET /v1/sandboxes/{id}/events": { kind: "owned", query: "?follow=false" },
  "GET /v1/sandboxes/{id}/state": { kind: "owned" },
  "GET /v1/sandboxes/{id}/logs": { kind: "owned" },
  "GET /v1/sandboxes/{id}/metrics": { kind: "owned" },
  "POST /v1/sessions": {
    kind: "scoped",
    ok: 201,
    json: { key: "$unique", tenant: "$tenant", template: "base" },
  },

  "POST /v1/sandboxes/{id}/exec": { kind: "owned", json: { cmd: ["true"] } },
  "GET /v1/sandboxes/{id}/processes": { kind: "owned" },
  "GET /v1/sandboxes/{id}/processes/{process}/output": { kind: "owned", endless: true },
  "POST /v1/sandboxes/{id}/processes/{process}/signal": { kind: "owned", json: { signal: "SIGTERM" } },
  "POST /v1/sandboxes/{id}/processes/{process}/stdin": { kind: "owned", body: "x" },
  "GET /v1/sandboxes/{id}/pty": { kind: "owned", ok: 101, query: "?cmd=true", webSocket: true },

  "POST /v1/sandboxes/{id}/code": { kind: "owned", json: { code: "1" } },
  "GET /v1/sandboxes/{id}/code/contexts": { kind: "owned" },
  "POST /v1/sandboxes/{id}/code/contexts": { kind: "owned", ok: 201, json: { language: "python" } },
  "DELETE /v1/sandboxes/{id}/code/contexts/{context_id}": { kind: "owned" },
  "POST /v1/sandboxes/{id}/code/contexts/{context_id}/restart": { kind: "owned" },

  "GET /v1/sandboxes/{id}/fs": { kind: "owned", query: "?path=/file", needs: ["file"] },
  "PUT /v1/sandboxes/{id}/fs": { kind: "owned", query: "?path=/new", body: "x" },
  "DELETE /v1/sandboxes/{id}/fs": { kind: "owned", query: "?path=/file", needs: ["file"] },
  "GET /v1/sandboxes/{id}/fs/stat": { kind: "owned", query: "?path=/file", needs: ["file"] },
  "GET /v1/sandboxes/{id}/fs/dir": { kind: "owned", query: "?path=/" },
  "POST /v1/sandboxes/{id}/fs/dir": { kind: "owned", query: "?path=/dir" },
  "POST /v1/sandboxes/{id}/fs/move": {
    kind: "owned",
    json: { source: "/file", destination: "/moved" },
    needs: ["file"],
  },
  "GET /v1/sandboxes/{id}/fs/watch": { kind: "owned", query: "?path=/", endless: true },
  "GET /v1/sandboxes/{id}/fs/archive": { kind: "owned", query: "?path=/home" },
  "PUT /v1/sandboxes/{id}/fs/archive": {
    kind: "owned",
    query: "?path=/home",
    body: "\0".repeat(1024),
    headers: { "content-type": "application/x-tar" },
  },

  "POST /v1/sandboxes/{id}/ports/{port}/url": { kind: "owned", ok: 201, json: {} },
  "GET /v1/sandboxes/{id}/urls": { kind: "owned" },
  "DELETE /v1/sandboxes/{id}/urls/{url_id}": { kind: "owned" },
  "GET /v1/sandboxes/{id}/ports/{port}/{path}": { kind: "owned" },
  "POST /v1/sandboxes/{id}/ports/{port}/{path}": { kind: "owned", body: "x" },
  "PUT /v1/sandboxes/{id}/ports/{port}/{path}": { kind: "owned", body: "x" },
  "PATCH /v1/sandboxes/{id}/ports/{port}/{path}": { kind: "owned", body: "x" },
  "DELETE /v1/sandboxes/{id}/ports/{port}/{path}": { kind: "owned" },

  "GET /v1/snapshots": { kind: "scoped" },
  "GET /v1/snapshots/{snapshot_id}": { kind: "owned" },
  "DELETE /v1/snapshots/{snapshot_id}": { kind: "owned" },

  "GET /v1/templates": { kind: "shared" },
  "GET /v1/templates/{name}": { kind: "shared" },
  "DELETE /v1/templates/{name}": { kind: "server", ok: 204 },
  "POST /v1/templates/{name}/build": { kind: "server" },

  "GET /v1/events": { kind: "scoped", query: "?follow=false&after=oldest" },
  "POST /v1/webhooks": { kind: "scoped", ok: 201, json: HOOK },
  "GET /v1/webhooks": { kind: "scoped" },
  "GET /v1/webhooks/{webhook_id}": { kind: "owned" },
  "PATCH /v1/webhooks/{webhook_id}": { kind: "owned", json: { description: "mine" } },
  "DELETE /v1/webhooks/{webhook_id}": { kind: "owned", ok: 204 },

  "POST /v1/accounts": { kind: "operator", ok: 201, json: { id: "$unique" } },
  "GET /v1/accounts": { kind: "operator" },
  "GET /v1/account": { kind: "own account" },
  "GET /v1/accounts/{account_id}": { kind: "account" },
  "PATCH /v1/accounts/{account_id}": { kind: "operator", json: { limits: { max_lifetime_seconds: null } } },
  "GET /v1/tenants/{tenant}": { kind: "share" },

  "GET /v1/ledger": { kind: "scoped" },
  "GET /v1/usage": { kind: "scoped" },
  "GET /v1/sandboxes/{id}/usage": { kind: "owned" },
  "GET /v1/prices": { kind: "scoped" },
  "PUT /v1/prices": { kind: "operator", json: DEFAULT_PRICES },
  "DELETE /v1/prices": { kind: "operator", ok: 204 },
  "GET /v1/accounts/{account_id}/prices": { kind: "operator" },
  "PUT /v1/accounts/{account_id}/prices": { kind: "operator", json: DEFAULT_PRICES },
  "DELETE /v1/accounts/{account_id}/prices": { kind: "operator", ok: 204 },
  "GET /v1/budgets": { kind: "scoped" },
  "PUT /v1/account/budget": { kind: "own account", json: { amount: 1_000_000 } },
  "DELETE /v1/account/budget": { kind: "own account", ok: 204 },
  "PUT /v1/tenants/{tenant}/budget": { kind: "own account", json: { amount: 1_000_000 } },
  "DELETE /v1/tenants/{tenant}/budget": { kind: "own account", ok: 204 },
  "GET /v1/ledger/export": { kind: "operator" },
  "GET /v1/ledger/checkpoint": { kind: "operator" },

  "POST /v1/keys": { kind: "scoped", ok: 201, json: { name: "another" } },
  "GET /v1/keys": { kind: "scoped" },
  "GET /v1/keys/{key_id}": { kind: "owned" },
  "DELETE /v1/keys/{key_id}": { kind: "owned" },

  "POST /sandboxes": { kind: "scoped", ok: 201, json: { templateID: "base" } },
  "POST /v2/sandboxes": { kind: "scoped", ok: 201, json: { templateID: "base" } },
  "GET /sandboxes/{id}": { kind: "owned" },
  "DELETE /sandboxes/{id}": { kind: "owned", ok: 204 },
  "GET /sandboxes": { kind: "scoped" },
  "GET /v2/sandboxes": { kind: "scoped" },
  "POST /sandboxes/{id}/timeout": { kind: "owned", ok: 204, json: { timeout: 60 } },
  "POST /sandboxes/{id}/refreshes": { kind: "owned", ok: 204, json: { duration: 60 } },
  "POST /sandboxes/{id}/pause": { kind: "owned", ok: 204, json: {} },
  "POST /sandboxes/{id}/resume": { kind: "owned", ok: 201, json: { timeout: 60 }, needs: ["sleep"] },
  "POST /sandboxes/{id}/fork": { kind: "owned", ok: 201, json: { count: 1, timeout: 60 } },
  "POST /sandboxes/{id}/snapshots": { kind: "owned", ok: 201, json: {} },
  "PUT /sandboxes/{id}/network": { kind: "owned", ok: 204, json: { denyOut: ["0.0.0.0/0"] } },
  "GET /sandboxes/{id}/metrics": { kind: "owned" },
  "GET /sandboxes/metrics": { kind: "scoped", query: "?sandbox_ids=sbx1" },
  "GET /sandboxes/{id}/logs": { kind: "owned" },
  "GET /v2/sandboxes/{id}/logs": { kind: "owned" },
  "GET /volumes": { kind: "scoped", ok: 400 },
  "POST /volumes": { kind: "scoped", ok: 400 },
  "GET /secrets": { kind: "scoped", ok: 400 },
  "POST /secrets": { kind: "scoped", ok: 400 },
  "GET /snapshots": { kind: "scoped" },
  "DELETE /templates/{template_id}": { kind: "owned", ok: 204, needs: ["E2B snapshot"] },
  "GET /templates/{template_id}": { kind: "owned", needs: ["built template"] },
  "PATCH /templates/{template_id}": { kind: "owned", json: { public: false }, needs: ["built template"] },
  "PATCH /v2/templates/{template_id}": { kind: "owned", json: { public: false }, needs: ["built template"] },
  "GET /templates": { kind: "scoped" },
  "GET /v2/templates": { kind: "scoped" },
  "POST /v2/templates": { kind: "scoped", ok: 202, json: { name: "t-$unique" } },
  "POST /v3/templates": { kind: "scoped", ok: 202, json: { name: "t-$unique:v1" } },
  "GET /templates/aliases/{alias}": { kind: "owned" },
  "GET /templates/{template_id}/tags": { kind: "owned" },
  "POST /templates/tags": {
    kind: "owned",
    ok: 201,
    json: { target: "$template_id:default", tags: ["v1"] },
    needs: ["built template"],
    names: "template_id",
  },
  "DELETE /templates/tags": {
    kind: "owned",
    ok: 204,
    json: { name: "$template_id", tags: ["v1"] },
    needs: ["built template"],
    names: "template_id",
  },
  "GET /templates/{template_id}/files/{hash}": { kind: "owned", ok: 201 },
  "PUT /templates/{template_id}/files/{hash}": { kind: "open", ok: 401, query: "?token=none", body: "x" },
  "POST /v2/templates/{template_id}/builds/{build_id}": {
    kind: "owned",
    ok: 202,
    json: { fromTemplate: "base", steps: [] },
  },
  "GET /templates/{template_id}/builds/{build_id}/status": { kind: "owned" },
  "POST /sandboxes/{id}/connect": { kind: "owned", json: { timeout: 60 } },
  "POST /v2/sandboxes/{id}/connect": { kind: "owned", json: {} },
};
