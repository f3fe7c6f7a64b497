import type { Clock, Log } from "@torpor/base";
import type { Prices } from "@torpor/protocol";
import type { ServerScope } from "../auth/tenant-scope.ts";
import type { Sandboxes } from "../sandbox/sandboxes.ts";
import type { BudgetRecord, BudgetStore } from "../store/budget-store.ts";
import type { EventStore } from "../store/event-store.ts";
import type { PriceStore } from "../store/price-store.ts";
import type { SandboxStore } from "../store/sandbox-store.ts";
import type { UsageStore } from "../store/usage-store.ts";
import { budgetState, periodAt } from "./budget-period.ts";

/** Of its time no more than the inverse of this is spent on looking, however much there is to add up. */
const REST_FACTOR = 20;

export interface BudgetWatchOptions {
  scope: ServerScope;
  budgets: BudgetStore;
  usage: UsageStore;
  prices: PriceStore;
  events: EventStore;
  store: SandboxStore;
  sandboxes: Pick<Sandboxes, "sleepForBudget">;
  clock: Clock;
  log: Log;
  /** Between two looks, milliseconds: what is spent beyond a budget is what is spent in that time. Default 10,000. */
  everyMs?: number;
}

/**
 * Holds tenants and accounts to their budgets: tells at 80%; at 100% tells, has nothing made or woken any more until the
 * period is over or the budget raised (`requireBudget`), and puts to sleep what is awake. It ends no sandbox.
 */
export class BudgetWatch {
  readonly #options: Required<BudgetWatchOptions>;
  #cancel: (() => void) | undefined;
  #closed = false;
  #looking: Promise<void> | undefined;
  /** Sandboxes that are being put to sleep: a host may take its time for that, and nobody waits for it. */
  readonly #sleeping = new Map<string, Promise<void>>();

  constructor(options: BudgetWatchOptions) {
    this.#options = { everyMs: 10_000, ...options };
  }

  start(): void {
    const { clock, everyMs } = this.#options;
    const turn = async (): Promise<void> => {
      const startedAt = clock.monotonic();
      await this.look();
      const restMs = Math.max(everyMs, (clock.monotonic() - startedAt) * REST_FACTOR);
      if (!this.#closed) this.#cancel = clock.after(restMs, () => void turn());
    };
    void turn();
  }

  /** One look at all budgets; callers that come while one is under way share it. What cannot be read now is told and looked at the next time. */
  look(): Promise<void> {
    this.#looking ??= this.#look()
      .catch((error: unknown) => this.#failed(error))
      .finally(() => (this.#looking = undefined));
    return this.#looking;
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#cancel?.();
    await this.#looking;
    await Promise.all(this.#sleeping.values());
  }

  #failed(error: unknown): void {
    this.#options.log.error({ op: "budget.watch", outcome: "failed", err: error });
  }

  async #look(): Promise<void> {
    const { budgets, prices, scope } = this.#options;
    const all = await budgets.all(scope);
    if (all.length === 0) return;
    const pricesOf = await prices.all(scope);
    const groups = new Map<string, BudgetRecord[]>();
    for (const budget of all) {
      const name = `${budget.account} ${budget.period}`;
      groups.set(name, [...(groups.get(name) ?? []), budget]);
    }
    for (const group of groups.values()) {
      if (this.#closed) return;
      try {
        await this.#lookAt(group, pricesOf);
      } catch (error) {
        this.#failed(error); // of this account; the others do not wait for it
      }
    }
  }

  /** Budgets of one account and period, for which its usage is added up once. */
  async #lookAt(group: readonly BudgetRecord[], pricesOf: (account: string) => Prices): Promise<void> {
    const { usage, scope, clock } = this.#options;
    const [first] = group;
    if (first === undefined) return;
    const now = clock.now();
    const period = periodAt(first.period, now);
    const filter = { ...period, now };
    const { account } = first;
    const spentBy = await usage.spent(scope, account, filter, pricesOf(account));
    const inAll = [...spentBy.values()].reduce((sum, one) => sum + one, 0);
    for (const budget of group) {
      const spent = budget.tenant === null ? inAll : (spentBy.get(budget.tenant) ?? 0);
      await this.#judge(budget, spent, period, now);
    }
  }

  async #judge(
    budget: BudgetRecord,
    spent: number,
    period: { from: number; to: number },
    now: number,
  ): Promise<void> {
    const { events, log } = this.#options;
    const state = budgetState(spent, budget.amount);
    const isExhausted = state === "exhausted";
    const wasExhausted = budget.exhaustedUntil !== null && budget.exhaustedUntil > now;
    const wasWarned = budget.warnedAt !== null && budget.warnedAt >= period.from;
    const isWarned = state !== "ok";
    const type =
      isExhausted && !wasExhausted
        ? "budget.exhausted"
        : !isExhausted && isWarned && !wasWarned
          ? "budget.warning"
          : undefined;
    const to = {
      warnedAt: isWarned ? (wasWarned ? budget.warnedAt : now) : null,
      exhaustedUntil: isExhausted ? period.to : null,
    };
    if (to.warnedAt !== budget.warnedAt || to.exhaustedUntil !== budget.exhaustedUntil) {
      const told = await events.tellOfBudget(budget, to, type, { spent, renewsAt: period.to });
      if (!told) return; // it was changed meanwhile: the next look sees how
      if (type !== undefined)
        log.warn({ op: "budget.watch", outcome: type, account: budget.account, tenant: budget.tenant });
    }
    if (isExhausted) await this.#sleepAll(budget);
  }

  /** Also what a host has woken by itself since. One that cannot sleep now is tried again at the next look. */
  async #sleepAll(budget: BudgetRecord): Promise<void> {
    const { store, budgets, sandboxes, scope, clock, log } = this.#options;
    for (const record of await store.awakeOf(scope, budget.account, budget.tenant)) {
      if (this.#sleeping.has(record.id)) continue;
      const sleeping = (async (): Promise<void> => {
        try {
          // It may have been raised since it was read.
          if (await budgets.isExhausted(scope, budget, clock.now())) await sandboxes.sleepForBudget(record);
        } catch (error) {
          log.warn({ op: "budget.sleep", outcome: "later", sandboxId: record.id, err: error });
        } finally {
          this.#sleeping.delete(record.id);
        }
      })();
      this.#sleeping.set(record.id, sleeping);
    }
  }
}
