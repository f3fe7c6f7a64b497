import type { CallOptions, KeyedCallOptions } from "./call-options.ts";
import { requestJson } from "./request-json.ts";
import { pathSegment } from "./request-path.ts";
import { PagedList } from "./sandbox-list.ts";
import type { Transport } from "./transport.ts";
import type { AccountWire, PageWire, QuotaWire, TenantWire } from "./wire.ts";

/** Of an account, or of one of its tenants: what it may have at most, or what it has. */
export interface Quota<Value> {
  /** That have not been destroyed, awake or asleep. */
  sandboxes: Value;
  /** That hold a machine. */
  sandboxesAwake: Value;
  /** Cores of those that are awake, together. */
  cpu: Value;
  /** Of those that are awake, together. */
  memoryMb: Value;
  diskMb: Value;
  /** Snapshots, and what hibernated sandboxes sleep in. */
  imageBytes: Value;
  createsPerMinute: Value;
}

/** Null for no limit. */
export type QuotaLimits = Quota<number | null>;

/** What an account may have at most; null for no limit of its own. */
export interface AccountLimits extends QuotaLimits {
  /** The absolute end of each sandbox, seconds from its create. */
  maxLifetimeSeconds: number | null;
}

/** Who has API keys and sandboxes. */
export interface Account {
  id: string;
  createdAt: Date;
  limits: AccountLimits;
  /** What each of its tenants may have. */
  tenantLimits: QuotaLimits;
  /** What it has now. */
  usage: Quota<number>;
}

/** A tenant's share of its account. */
export interface TenantUsage {
  tenant: string;
  limits: QuotaLimits;
  usage: Quota<number>;
}

export interface AccountCreateOptions extends KeyedCallOptions {
  id: string;
  limits?: Partial<AccountLimits> | undefined;
  /** Of each of its tenants. */
  tenantLimits?: Partial<QuotaLimits> | undefined;
}

export interface SetLimitsOptions extends CallOptions {
  tenantLimits?: Partial<QuotaLimits> | undefined;
}

export interface AccountListOptions extends CallOptions {
  /** Accounts per request; default 50, at most 200. */
  pageSize?: number | undefined;
}

const NONE: ReadonlySet<string> = new Set();

/** `client.accounts`. All needs a key with the scope `operator`, but `own`, and `get` of one's own: `admin`; and `tenant`. */
export class Accounts {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** The account of the key that asks. */
  async own({ signal, timeoutMs }: CallOptions = {}): Promise<Account> {
    const path = "/v1/account";
    return accountFromWire(
      await this.#transport.json<AccountWire>({ method: "GET", path, signal, timeoutMs }),
    );
  }

  /** @throws NotFoundError also for one that the key may not see */
  async get(id: string, { signal, timeoutMs }: CallOptions = {}): Promise<Account> {
    const path = `/v1/accounts/${pathSegment("id", id)}`;
    return accountFromWire(
      await this.#transport.json<AccountWire>({ method: "GET", path, signal, timeoutMs }),
    );
  }

  /** The newest first, fetched page by page as they are iterated. */
  list({ pageSize, signal, timeoutMs }: AccountListOptions = {}): PagedList<Account> {
    return new PagedList(async (cursor) => {
      const query = { limit: pageSize, cursor };
      const path = "/v1/accounts";
      const page = await this.#transport.json<PageWire<AccountWire>>({
        method: "GET",
        path,
        query,
        signal,
        timeoutMs,
      });
      return { items: page.items.map(accountFromWire), nextCursor: page.next_cursor };
    });
  }

  /** Makes an account, without keys: `client.keys.create({ account, scopes: ["admin"], ... })` makes its first. @throws ConflictError */
  async create({
    id,
    limits = {},
    tenantLimits = {},
    signal,
    timeoutMs,
    idempotencyKey,
  }: AccountCreateOptions): Promise<Account> {
    const wire = await this.#transport.json<AccountWire>({
      method: "POST",
      path: "/v1/accounts",
      json: `{"id":${JSON.stringify(id)},${limitsJson(limits, tenantLimits)}}`,
      signal,
      timeoutMs,
      idempotencyKey,
    });
    return accountFromWire(wire);
  }

  /** Sets some limits and leaves the others; null takes one away. They count from the next create on. */
  async setLimits(
    id: string,
    limits: Partial<AccountLimits>,
    { tenantLimits = {}, signal, timeoutMs }: SetLimitsOptions = {},
  ): Promise<Account> {
    const wire = await this.#transport.json<AccountWire>({
      method: "PATCH",
      path: `/v1/accounts/${pathSegment("id", id)}`,
      json: `{${limitsJson(limits, tenantLimits)}}`,
      signal,
      timeoutMs,
    });
    return accountFromWire(wire);
  }

  /** What a tenant of the key's account has and may have; needs `sandbox:read`. */
  async tenant(tenant: string, { signal, timeoutMs }: CallOptions = {}): Promise<TenantUsage> {
    const path = `/v1/tenants/${pathSegment("tenant", tenant)}`;
    const wire = await this.#transport.json<TenantWire>({ method: "GET", path, signal, timeoutMs });
    return {
      tenant: wire.tenant,
      limits: quotaFromWire(wire.limits),
      usage: quotaFromWire(wire.usage),
    };
  }
}

function limitsJson(limits: object, tenantLimits: object): string {
  return `"limits":${requestJson(limits, NONE)},"tenant_limits":${requestJson(tenantLimits, NONE)}`;
}

function quotaFromWire<Value>(wire: QuotaWire<Value>): Quota<Value> {
  return {
    sandboxes: wire.sandboxes,
    sandboxesAwake: wire.sandboxes_awake,
    cpu: wire.cpu,
    memoryMb: wire.memory_mb,
    diskMb: wire.disk_mb,
    imageBytes: wire.image_bytes,
    createsPerMinute: wire.creates_per_minute,
  };
}

function accountFromWire(wire: AccountWire): Account {
  return {
    id: wire.id,
    createdAt: new Date(wire.created_at),
    limits: { maxLifetimeSeconds: wire.limits.max_lifetime_seconds, ...quotaFromWire(wire.limits) },
    tenantLimits: quotaFromWire(wire.tenant_limits),
    usage: quotaFromWire(wire.usage),
  };
}
