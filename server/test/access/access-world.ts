import type { IncomingMessage, ServerResponse } from "node:http";
import { holdsScope, newSnapshotId, randomText, SCOPES, type Scope } from "@torpor/protocol";
import { apiKeyPrefix, hashApiKey, newApiKey } from "../../src/auth/authenticator.ts";
import { TenantScope } from "../../src/auth/tenant-scope.ts";
import { TemplateStore } from "../../src/store/template-store.ts";
import { World } from "../world.ts";
import type { CallerName, Row, Thing } from "./access-table.ts";

export const TENANT = "acme";
export const OTHER_TENANT = "globex";

/** Names of one thing and of all it lies in, by the variable parts of a path. */
export type Names = Record<string, string>;

/** A server with tenants and accounts, and the things of one of them. */
export class AccessWorld implements AsyncDisposable {
  readonly world: World;
  readonly #keys = new Map<string, string>();

  private constructor(world: World) {
    this.world = world;
  }

  static async start(): Promise<AccessWorld> {
    const world = await World.start({ webhooks: { allow: ["127.0.0.0/8"] } });
    world.host.codeServer = serveCode;
    const access = new AccessWorld(world);
    const key = await access.addKey({ scopes: ["operator"] });
    const made = await world.call("POST", "/v1/accounts", { key, json: { id: "others" } });
    if (made.status !== 201) throw new Error(`the account was not made: ${made.text}`);
    return access;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.world[Symbol.asyncDispose]();
  }

  /** The API key of a caller on a route that needs `scope`; null for none. Made once. */
  async keyOf(caller: CallerName, scope: Scope | null): Promise<string | null> {
    if (caller === "none") return null;
    const name = `${caller} ${scope}`;
    const known = this.#keys.get(name);
    if (known !== undefined) return known;
    const key = await this.#newKey(caller, scope ?? "sandbox:read");
    this.#keys.set(name, key);
    return key;
  }

  async #newKey(caller: Exclude<CallerName, "none">, scope: Scope): Promise<string> {
    const others = SCOPES.filter(
      (other) => !holdsScope([other], scope) && other !== "admin" && other !== "operator",
    );
    const own = scope === "operator" ? "admin" : scope; // no tenant's key and no other account's has that one
    switch (caller) {
      case "owner":
        return await this.addKey({ scopes: [own], tenant: TENANT });
      case "account":
        return await this.addKey({ scopes: [own] });
      case "operator":
        return await this.addKey({ scopes: ["operator"] });
      case "other tenant":
        return await this.addKey({ scopes: ["admin"], tenant: OTHER_TENANT });
      case "other account":
        return await this.addKey({ scopes: ["admin"], account: "others" });
      case "revoked":
        return await this.addKey({ scopes: ["admin"], tenant: TENANT, revoked: true });
      case "expired":
        return await this.addKey({ scopes: ["admin"], tenant: TENANT, expiresAt: Date.now() - 1 });
      case "wrong scope":
        return await this.addKey({ scopes: others, tenant: TENANT });
    }
  }

  async addKey({
    scopes,
    tenant = null,
    account = "default",
    expiresAt = null,
    revoked = false,
  }: {
    scopes: readonly Scope[];
    tenant?: string | null;
    account?: string;
    expiresAt?: number | null;
    revoked?: boolean;
  }): Promise<string> {
    const key = newApiKey();
    const { keyStore, database } = this.world.server;
    const id = `key_${randomText(20)}`;
    await keyStore.insert({
      id,
      account,
      name: "of a test",
      prefix: apiKeyPrefix(key),
      hash: hashApiKey(key),
      tenant,
      scopes,
      createdAt: Date.now(),
      expiresAt,
    });
    if (revoked)
      await database.db
        .updateTable("api_keys")
        .set({ revoked_at: Date.now() })
        .where("id", "=", id)
        .execute();
    return key;
  }

  /** A template with a build that is ready, of the tenant. Building one takes a sandbox that runs things. */
  async #buildTemplate(): Promise<string> {
    const name = `t-${randomText(10)}`;
    const { template, build } = await this.#templates.request(this.#scope, { ...TEMPLATE, name }, Date.now());
    await this.#templates.begin(build, Date.now());
    const made = { snapshotId: newSnapshotId(), defaults: { env: {}, user: "user", workdir: "/" } };
    await this.#templates.finish(build, made, Date.now());
    return template.id;
  }

  async #requestBuild(templateId: string): Promise<string> {
    const template = await this.#templates.find(this.#scope, templateId);
    if (template === undefined) throw new Error(`there is no template ${templateId}`);
    const asked = { ...TEMPLATE, name: template.name };
    return (await this.#templates.request(this.#scope, asked, Date.now())).build.id;
  }

  get #templates(): TemplateStore {
    return new TemplateStore(this.world.server.database);
  }

  get #scope(): TenantScope {
    return TenantScope.fromVerifiedKey({ keyId: "key_of_a_test", account: "default", tenant: TENANT });
  }

  /** Makes what `path` names and `row` needs, all of it the tenant's. */
  async makeThings(path: string, row: Row): Promise<Names> {
    const names: Names = {};
    for (const thing of [...named(path), ...(row.needs ?? [])]) await this.#make(thing, names);
    return names;
  }

  async #make(thing: Thing, names: Names): Promise<void> {
    const { world } = this;
    const made = async (path: string, json: unknown, status: number): Promise<Record<string, unknown>> => {
      const reply = await world.call("POST", path, { json });
      if (reply.status !== status) throw new Error(`${path} answered ${reply.status}: ${reply.text}`);
      return reply.body;
    };
    const text = (value: unknown): string => String(value);
    if (thing === "sandbox") names["id"] = (await world.sandbox({ template: "base", tenant: TENANT })).id;
    else if (thing === "process") {
      const exec = { cmd: ["sleep", "60"], background: true, keep_stdin_open: true };
      names["process"] = text((await made(`/v1/sandboxes/${names["id"]}/exec`, exec, 202))["exec_id"]);
    } else if (thing === "context") names["context_id"] = "c1";
    else if (thing === "port") {
      names["port"] = "18431";
      world.host.programs.set(18_431, { answer: (_path, _request, response) => void response.end("inside") });
    } else if (thing === "path") names["path"] = "some/path";
    else if (thing === "preview URL") {
      const url = await made(`/v1/sandboxes/${names["id"]}/ports/18431/url`, {}, 201);
      names["url_id"] = text(url["id"]);
    } else if (thing === "snapshot") {
      const { id } = await world.sandbox({ template: "base", tenant: TENANT });
      names["snapshot_id"] = text((await made(`/v1/sandboxes/${id}/snapshots`, {}, 201))["id"]);
    } else if (thing === "E2B snapshot") {
      const { id } = await world.sandbox({ template: "base", tenant: TENANT });
      const { id: snapshot } = await made(`/v1/sandboxes/${id}/snapshots`, {}, 201);
      names["template_id"] = `${text(snapshot)}:default`;
    } else if (thing === "built template") names["template_id"] = await this.#buildTemplate();
    else if (thing === "alias") names["alias"] = await this.#buildTemplate();
    else if (thing === "build") names["build_id"] = await this.#requestBuild(names["template_id"] ?? "");
    else if (thing === "files hash") names["hash"] = "0123456789abcdef".repeat(4);
    else if (thing === "sleep") await made(`/v1/sandboxes/${names["id"]}/hibernate`, {}, 200);
    else if (thing === "key")
      names["key_id"] = text((await made("/v1/keys", { name: "theirs", tenant: TENANT }, 201))["id"]);
    else if (thing === "webhook") {
      const key = await this.keyOf("owner", "admin");
      const reply = await world.call("POST", "/v1/webhooks", {
        key,
        json: { url: "http://127.0.0.1:9/hook" },
      });
      names["webhook_id"] = text(reply.body["id"]);
    } else if (thing === "template") {
      const name = `t-${randomText(8)}`;
      const [base] = world.host.templates;
      if (base === undefined) throw new Error("the fake host has no template");
      world.host.templates.push({ ...base, name });
      names["name"] = name;
    } else if (thing === "account") names["account_id"] = "default";
    else if (thing === "tenant") names["tenant"] = TENANT;
    else {
      const file = await world.call("PUT", `/v1/sandboxes/${names["id"]}/fs?path=/file`, { body: "x" });
      if (file.status !== 200) throw new Error(`the file was not written: ${file.text}`);
    }
  }
}

const TEMPLATE = { cpu: null, memoryMb: null, minFreeDiskMb: null, tags: ["default"] };

/** What stands for each variable part of a path, in the order of making. */
const THINGS: Record<string, Thing> = {
  id: "sandbox",
  process: "process",
  context_id: "context",
  snapshot_id: "snapshot",
  template_id: "built template",
  build_id: "build",
  hash: "files hash",
  alias: "alias",
  key_id: "key",
  webhook_id: "webhook",
  name: "template",
  account_id: "account",
  port: "port",
  path: "path",
  url_id: "preview URL",
  tenant: "tenant",
};

/** The variable parts of a path, in order. */
export function partsOf(path: string): string[] {
  return [...path.matchAll(/\{(\w+)\}/g)].map((match) => match[1] ?? "");
}

function named(path: string): Thing[] {
  return partsOf(path).map((part) => {
    const thing = THINGS[part];
    if (thing === undefined) throw new Error(`say in access-world.ts what {${part}} of ${path} stands for`);
    return thing;
  });
}

/** An id of the same form that nothing ever had. */
export function neverExisted(id: string): string {
  const [, prefix = ""] = /^([a-z]+_|snp|tpl|s)/.exec(id) ?? [];
  const [suffix = ""] = /:\w+$/.exec(id) ?? [];
  return prefix + randomText(id.length - prefix.length - suffix.length) + suffix;
}

function serveCode(path: string, request: IncomingMessage, response: ServerResponse): void {
  request.resume();
  const json = (value: unknown): void =>
    void response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(value));
  const context = { id: "c1", language: "python", cwd: "/" };
  if (path === "/contexts") return json(request.method === "GET" ? [context] : context);
  if (path.startsWith("/contexts/")) return void response.writeHead(204).end();
  response.writeHead(200, { "content-type": "application/x-ndjson" });
  response.end(`${JSON.stringify({ type: "number_of_executions", execution_count: 1 })}\n`);
}
