import type { CallOptions } from "./call-options.ts";
import { pathSegment } from "./request-path.ts";
import type { Transport } from "./transport.ts";
import type {
  BudgetWire,
  PricesWire,
  UsageIntervalWire,
  UsageItemWire,
  UsageSumsWire,
  UsageWire,
} from "./wire.ts";

/** By what usage can be added up. */
export type UsageGroup = "account" | "tenant" | "template" | "sandbox" | "day" | "state";

/** What was held and really used, and what it costs. */
export interface UsageSums {
  /** Time in these states, added up over sandboxes. */
  seconds: { running: number; paused: number; hibernated: number };
  /** Cores allotted while running, used or not. */
  vcpuSeconds: number;
  /** Memory allotted while running or paused. */
  memoryGibSeconds: number;
  diskGibSeconds: number;
  /** What hibernated sandboxes and snapshots took on the disk. */
  imageGibSeconds: number;
  /** CPU time really used. */
  cpuSeconds: number;
  memoryPeakBytes: number;
  networkInBytes: number;
  networkOutBytes: number;
  /** Time awake with nobody asking anything and nothing computing. */
  idleSeconds: number;
  /** Of the amounts; null where there are none, or of accounts with several, whose sum says nothing. */
  currency: string | null;
  cost: number;
  /** What the time asleep would have cost awake, less what it cost. */
  savedBySleeping: number;
  /** What of the cost was for `idleSeconds`. */
  wastedByIdling: number;
  /** Time that is not in here, since the end of a sandbox was noticed only after it. */
  uncertainSeconds: number;
}

/** One row: what it is grouped by, and the sums. */
export interface UsageItem extends UsageSums {
  account?: string | undefined;
  tenant?: string | undefined;
  template?: string | undefined;
  sandboxId?: string | undefined;
  /** UTC, such as 2026-11-30. */
  day?: string | undefined;
  state?: string | undefined;
}

export interface UsageReport {
  from: Date;
  to: Date;
  prices: Prices;
  items: UsageItem[];
  total: UsageSums;
}

/** What is paid for what is held. */
export interface Prices {
  /** ISO 4217, such as USD. */
  currency: string;
  vcpuHour: number;
  memoryGibHour: number;
  /** Of the disk of one that is awake; a month is 30 days. */
  diskGibMonth: number;
  imageGibMonth: number;
}

/** What a sandbox held from one moment to the next, unchanged. Each begins where the one before ends. */
export interface UsageInterval {
  sandboxId: string;
  number: number;
  tenant: string;
  template: string;
  /** State of the sandbox; `snapshot` for a snapshot's. */
  state: string;
  cpu: number;
  memoryMb: number;
  diskMb: number;
  imageBytes: number;
  from: Date;
  /** Null while it goes on. */
  to: Date | null;
  cpuSeconds: number;
  memoryPeakBytes: number;
  networkInBytes: number;
  networkOutBytes: number;
  idleSeconds: number;
  /** Its end was noticed this much later; that time is not counted. */
  uncertainMs: number;
}

/** What a tenant, or the whole account, may spend in a period. */
export interface Budget {
  /** Null for the account's own. */
  tenant: string | null;
  amount: number;
  period: "day" | "month";
  /** In this period. */
  spent: number;
  /** `warned` from 80% on; `exhausted`: nothing is made or woken, and what was awake sleeps. */
  state: "ok" | "warned" | "exhausted";
  renewsAt: Date;
}

export interface UsageOptions extends CallOptions {
  /** Default: the first of this month, 00:00 UTC. */
  from?: Date | undefined;
  /** Default: now. */
  to?: Date | undefined;
  /** Default `["tenant"]`. With `account` the operator gets all accounts. */
  groupBy?: readonly UsageGroup[] | undefined;
  tenant?: string | undefined;
  template?: string | undefined;
  sandboxId?: string | undefined;
}

export interface SetBudgetOptions extends CallOptions {
  /** Default: the account's own. */
  tenant?: string | undefined;
  /** Default `month`. Begins anew at 00:00 UTC, of each day or of the first of the month. */
  period?: "day" | "month" | undefined;
}

/** `client.usage`: what was used, what it costs, and what may be spent. */
export class Usage {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Sums from `from` to `to`; what lies partly within counts in part, and what goes on counts until now. */
  async get({ signal, timeoutMs, ...options }: UsageOptions = {}): Promise<UsageReport> {
    const wire = await this.#transport.json<UsageWire>({
      method: "GET",
      path: "/v1/usage",
      query: queryOf(options),
      signal,
      timeoutMs,
    });
    return {
      from: new Date(wire.from),
      to: new Date(wire.to),
      prices: pricesFromWire(wire.prices),
      items: wire.items.map(itemFromWire),
      total: sumsFromWire(wire.total),
    };
  }

  /** The meter's intervals of one sandbox, oldest first, also of one that is no longer kept; or of a snapshot. @throws NotFoundError */
  async intervals(sandboxId: string, { signal, timeoutMs }: CallOptions = {}): Promise<UsageInterval[]> {
    const path = `/v1/sandboxes/${pathSegment("sandboxId", sandboxId)}/usage`;
    const intervals: UsageInterval[] = [];
    for (let after: number | null = 0; after !== null;) {
      const page: { items: UsageIntervalWire[]; next_after: number | null } = await this.#transport.json({
        method: "GET",
        path,
        query: { after },
        signal,
        timeoutMs,
      });
      intervals.push(...page.items.map(intervalFromWire));
      after = page.next_after;
    }
    return intervals;
  }

  /** What the account of the key pays; for a key with the scope `operator` also what another does. */
  async prices({
    account,
    signal,
    timeoutMs,
  }: CallOptions & { account?: string | undefined } = {}): Promise<Prices> {
    const path = pricesPath(account);
    return pricesFromWire(await this.#transport.json<PricesWire>({ method: "GET", path, signal, timeoutMs }));
  }

  /** Sets what an account pays, or all that have no prices of their own. Needs a key with the scope `operator`. */
  async setPrices(
    prices: Prices,
    { account, signal, timeoutMs }: CallOptions & { account?: string | undefined } = {},
  ): Promise<Prices> {
    const wire: PricesWire = {
      currency: prices.currency,
      vcpu_hour: prices.vcpuHour,
      memory_gib_hour: prices.memoryGibHour,
      disk_gib_month: prices.diskGibMonth,
      image_gib_month: prices.imageGibMonth,
    };
    const path = pricesPath(account);
    const json = JSON.stringify(wire);
    return pricesFromWire(
      await this.#transport.json<PricesWire>({ method: "PUT", path, json, signal, timeoutMs }),
    );
  }

  /** Takes an account's own prices off, or those of all that have none of their own: what is more general holds again. */
  async removePrices({
    account,
    signal,
    timeoutMs,
  }: CallOptions & { account?: string | undefined } = {}): Promise<void> {
    await this.#transport.text({ method: "DELETE", path: pricesPath(account), signal, timeoutMs });
  }

  /** The account's own budget and those of its tenants, with what is spent. */
  async budgets({ signal, timeoutMs }: CallOptions = {}): Promise<Budget[]> {
    const { items } = await this.#transport.json<{ items: BudgetWire[] }>({
      method: "GET",
      path: "/v1/budgets",
      signal,
      timeoutMs,
    });
    return items.map(budgetFromWire);
  }

  /**
   * Sets what may be spent in a period. At 80% of it an event `budget.warning` is written, at 100% `budget.exhausted`: then
   * nothing is made or woken, and what is awake is hibernated, never destroyed. Needs a key with the scope `admin`.
   */
  async setBudget(
    amount: number,
    { tenant, period = "month", signal, timeoutMs }: SetBudgetOptions = {},
  ): Promise<Budget> {
    const json = JSON.stringify({ amount, period });
    return budgetFromWire(
      await this.#transport.json<BudgetWire>({
        method: "PUT",
        path: budgetPath(tenant),
        json,
        signal,
        timeoutMs,
      }),
    );
  }

  /** Takes a budget off. Idempotent. */
  async removeBudget({
    tenant,
    signal,
    timeoutMs,
  }: CallOptions & { tenant?: string | undefined } = {}): Promise<void> {
    await this.#transport.text({ method: "DELETE", path: budgetPath(tenant), signal, timeoutMs });
  }
}

function pricesPath(account: string | undefined): string {
  return account === undefined ? "/v1/prices" : `/v1/accounts/${pathSegment("account", account)}/prices`;
}

function budgetPath(tenant: string | undefined): string {
  return tenant === undefined ? "/v1/account/budget" : `/v1/tenants/${pathSegment("tenant", tenant)}/budget`;
}

function queryOf({
  from,
  to,
  groupBy,
  tenant,
  template,
  sandboxId,
}: UsageOptions): Record<string, string | undefined> {
  return {
    from: from?.toISOString(),
    to: to?.toISOString(),
    group_by: groupBy?.join(","),
    tenant,
    template,
    sandbox_id: sandboxId,
  };
}

function sumsFromWire(wire: UsageSumsWire): UsageSums {
  return {
    seconds: wire.seconds,
    vcpuSeconds: wire.vcpu_seconds,
    memoryGibSeconds: wire.memory_gib_seconds,
    diskGibSeconds: wire.disk_gib_seconds,
    imageGibSeconds: wire.image_gib_seconds,
    cpuSeconds: wire.cpu_seconds,
    memoryPeakBytes: wire.memory_peak_bytes,
    networkInBytes: wire.network_in_bytes,
    networkOutBytes: wire.network_out_bytes,
    idleSeconds: wire.idle_seconds,
    currency: wire.currency,
    cost: wire.cost,
    savedBySleeping: wire.saved_by_sleeping,
    wastedByIdling: wire.wasted_by_idling,
    uncertainSeconds: wire.uncertain_seconds,
  };
}

function itemFromWire(wire: UsageItemWire): UsageItem {
  const keys = {
    account: wire.account,
    tenant: wire.tenant,
    template: wire.template,
    sandboxId: wire.sandbox_id,
    day: wire.day,
    state: wire.state,
  };
  const named = Object.fromEntries(Object.entries(keys).filter(([, value]) => value !== undefined));
  return { ...named, ...sumsFromWire(wire) };
}

function intervalFromWire(wire: UsageIntervalWire): UsageInterval {
  return {
    sandboxId: wire.sandbox_id,
    number: wire.number,
    tenant: wire.tenant,
    template: wire.template,
    state: wire.state,
    cpu: wire.cpu,
    memoryMb: wire.memory_mb,
    diskMb: wire.disk_mb,
    imageBytes: wire.image_bytes,
    from: new Date(wire.from),
    to: wire.to === null ? null : new Date(wire.to),
    cpuSeconds: wire.cpu_seconds,
    memoryPeakBytes: wire.memory_peak_bytes,
    networkInBytes: wire.network_in_bytes,
    networkOutBytes: wire.network_out_bytes,
    idleSeconds: wire.idle_seconds,
    uncertainMs: wire.uncertain_ms,
  };
}

function pricesFromWire(wire: PricesWire): Prices {
  return {
    currency: wire.currency,
    vcpuHour: wire.vcpu_hour,
    memoryGibHour: wire.memory_gib_hour,
    diskGibMonth: wire.disk_gib_month,
    imageGibMonth: wire.image_gib_month,
  };
}

function budgetFromWire(wire: BudgetWire): Budget {
  const { tenant, amount, period, spent, state } = wire;
  return { tenant, amount, period, spent, state, renewsAt: new Date(wire.renews_at) };
}
