import type { Clock, Log } from "@torpor/base";
import type { ServerScope } from "../auth/tenant-scope.ts";
import type { Sandboxes } from "../sandbox/sandboxes.ts";
import type { BudgetRecord, BudgetStore } from "../store/budget-store.ts";
import type { EventStore } from "../store/event-store.ts";
import type { PriceStore } from "../store/price-store.ts";
import type { SandboxStore } from "../store/sandbox-store.ts";
import type { UsageStore } from "../store/usage-store.ts";
import { periodAt } from "./budget-period.ts";

/** The share of a budget at which its owner is told. */
const WARN_AT = 0.8;

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

  constructor(options: BudgetWatchOptions) {
    this.#options = { everyMs: 10_000, ...options };
  }

  start(): void {
    const { clock, everyMs, log } = this.#options;
    const turn = async (): Promise<void> => {
      try {
        await this.look();
      } catch (error) {
        log.error({ op: "budget.watch", outcome: "failed", err: error });
      }
      if (!this.#closed) this.#cancel = clock.after(everyMs, () => void turn());
    };
    void turn();
  }

  /** One look at all budgets; callers that come while one is under way share it. @throws when the store cannot be read: nothing is done then */
  look(): Promise<void> {
    this.#looking ??= this.#look().finally(() => (this.#looking = undefined));
    return this.#looking;
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#cancel?.();
    await this.#looking?.catch(() => {});
  }

  async #look(): Promise<void> {
    const { budgets, prices, usage, scope, clock } = this.#options;
    const all = await budgets.all(scope);
    if (all.length === 0) return;
    const pricesOf = await prices.all(scope);
    for (const budget of all) {
      if (this.#closed) return;
      const now = clock.now();
      const period = periodAt(budget.period, now);
      const spent = await usage.spent(scope, budget, { ...period, now }, pricesOf(budget.account));
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
    const isExhausted = spent >= budget.amount;
    const wasExhausted = budget.exhaustedUntil !== null && budget.exhaustedUntil > now;
    const wasWarned = budget.warnedAt !== null && budget.warnedAt >= period.from;
    const isWarned = spent >= budget.amount * WARN_AT;
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
  async #sleepAll({ account, tenant }: BudgetRecord): Promise<void> {
    const { store, sandboxes, scope, log } = this.#options;
    const awake = await store.awakeOf(scope, account, tenant);
    await Promise.all(
      awake.map(async (record) => {
        try {
          await sandboxes.sleepForBudget(record);
        } catch (error) {
          log.warn({ op: "budget.sleep", outcome: "later", sandboxId: record.id, err: error });
        }
      }),
    );
  }
}
