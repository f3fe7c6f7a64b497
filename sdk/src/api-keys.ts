import { answeredList } from "./answered-list.ts";
import type { CallOptions, KeyedCallOptions } from "./call-options.ts";
import { NotFoundError } from "./errors.ts";
import { pathSegment } from "./request-path.ts";
import { requestJson } from "./request-json.ts";
import { dateOrNull } from "./sandbox-info.ts";
import type { Transport } from "./transport.ts";
import type { KeyScope, KeyWire } from "./wire.ts";

/** What is known of an API key; the key itself is shown once, when it is made. */
export interface ApiKey {
  id: string;
  name: string;
  /** First characters of the key. */
  prefix: string;
  account: string;
  /** The only tenant it may act for; null for all. */
  tenant: string | null;
  scopes: KeyScope[];
  createdAt: Date;
  expiresAt: Date | null;
  lastUsedAt: Date | null;
  revokedAt: Date | null;
}

export interface ApiKeyCreateOptions extends KeyedCallOptions {
  name: string;
  /** Default: that of the key that asks. Another needs a key with the scope `operator`. */
  account?: string | undefined;
  tenant?: string | undefined;
  /** Default: read, write and exec of sandboxes. */
  scopes?: readonly KeyScope[] | undefined;
  /** Without it the key does not expire. */
  expiresInSeconds?: number | undefined;
}

export interface ApiKeyListOptions extends CallOptions {
  /** Default: that of the key that asks. Another needs a key with the scope `operator`. */
  account?: string | undefined;
}

const NOT_SENT: ReadonlySet<string> = new Set(["signal", "timeoutMs", "idempotencyKey"]);

/** `client.keys`; needs a key with the scope `admin`. */
export class ApiKeys {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** The newest first, revoked ones too. `account`: default that of the key that asks; another needs the scope `operator`. */
  async list({ account, signal, timeoutMs }: ApiKeyListOptions = {}): Promise<ApiKey[]> {
    const query = { account };
    const answer = await this.#transport.json({ method: "GET", path: "/v1/keys", query, signal, timeoutMs });
    return answeredList<KeyWire>(answer, "keys").map(apiKeyFromWire);
  }

  /** What is known of one, never the key itself; with the scope `operator`, of any account's. @throws NotFoundError */
  async get(id: string, { signal, timeoutMs }: CallOptions = {}): Promise<ApiKey> {
    const path = `/v1/keys/${pathSegment("id", id)}`;
    return apiKeyFromWire(await this.#transport.json<KeyWire>({ method: "GET", path, signal, timeoutMs }));
  }

  /** Makes a key, which can do no more than the one that makes it; `key` is shown this once. */
  async create(options: ApiKeyCreateOptions): Promise<ApiKey & { key: string }> {
    const { signal, timeoutMs, idempotencyKey } = options;
    const json = requestJson(options, NOT_SENT);
    const path = "/v1/keys";
    const wire = await this.#transport.json<KeyWire & { key: string }>({
      method: "POST",
      path,
      json,
      signal,
      timeoutMs,
      idempotencyKey,
    });
    return { ...apiKeyFromWire(wire), key: wire.key };
  }

  /** Ends a key at once; with the scope `operator`, any account's. Returns false when there was none. */
  async revoke(id: string, { signal, timeoutMs }: CallOptions = {}): Promise<boolean> {
    try {
      await this.#transport.text({
        method: "DELETE",
        path: `/v1/keys/${pathSegment("id", id)}`,
        signal,
        timeoutMs,
      });
      return true;
    } catch (error) {
      if (error instanceof NotFoundError) return false;
      throw error;
    }
  }
}

function apiKeyFromWire(wire: KeyWire): ApiKey {
  return {
    id: wire.id,
    name: wire.name,
    prefix: wire.prefix,
    account: wire.account,
    tenant: wire.tenant,
    scopes: wire.scopes,
    createdAt: new Date(wire.created_at),
    expiresAt: dateOrNull(wire.expires_at),
    lastUsedAt: dateOrNull(wire.last_used_at),
    revokedAt: dateOrNull(wire.revoked_at),
  };
}
