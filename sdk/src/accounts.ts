import type { CallOptions, KeyedCallOptions } from "./call-options.ts";
import { requestJson } from "./request-json.ts";
import { pathSegment } from "./request-path.ts";
import { PagedList } from "./sandbox-list.ts";
import type { Transport } from "./transport.ts";
import type { AccountWire, PageWire } from "./wire.ts";

/** What an account may have at most; null for no limit of its own. */
export interface AccountLimits {
  /** The absolute end of each sandbox, seconds from its create. */
  maxLifetimeSeconds: number | null;
}

/** Who has API keys and sandboxes. */
export interface Account {
  id: string;
  createdAt: Date;
  limits: AccountLimits;
  /** What it has now. */
  usage: { sandboxes: number; sandboxesAwake: number };
}

export interface AccountCreateOptions extends KeyedCallOptions {
  id: string;
  limits?: Partial<AccountLimits> | undefined;
}

export interface AccountListOptions extends CallOptions {
  /** Accounts per request; default 50, at most 200. */
  pageSize?: number | undefined;
}

const NONE: ReadonlySet<string> = new Set();

/** `client.accounts`. All but `own` needs a key with the scope `operator`; `own`, and `get` of one's own, need `admin`. */
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
    signal,
    timeoutMs,
    idempotencyKey,
  }: AccountCreateOptions): Promise<Account> {
    const wire = await this.#transport.json<AccountWire>({
      method: "POST",
      path: "/v1/accounts",
      json: `{"id":${JSON.stringify(id)},"limits":${requestJson(limits, NONE)}}`,
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
    { signal, timeoutMs }: CallOptions = {},
  ): Promise<Account> {
    const wire = await this.#transport.json<AccountWire>({
      method: "PATCH",
      path: `/v1/accounts/${pathSegment("id", id)}`,
      json: `{"limits":${requestJson(limits, NONE)}}`,
      signal,
      timeoutMs,
    });
    return accountFromWire(wire);
  }
}

function accountFromWire(wire: AccountWire): Account {
  return {
    id: wire.id,
    createdAt: new Date(wire.created_at),
    limits: { maxLifetimeSeconds: wire.limits.max_lifetime_seconds },
    usage: { sandboxes: wire.usage.sandboxes, sandboxesAwake: wire.usage.sandboxes_awake },
  };
}
