import type { Budget, BudgetPeriod } from "@torpor/protocol";

/** When the period of a moment began, and when the next one begins, Unix milliseconds, UTC. */
export function periodAt(period: BudgetPeriod, now: number): { from: number; to: number } {
  const date = new Date(now);
  const [year, month, day] = [date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate()];
  return period === "day"
    ? { from: Date.UTC(year, month, day), to: Date.UTC(year, month, day + 1) }
    : { from: Date.UTC(year, month, 1), to: Date.UTC(year, month + 1, 1) };
}

/** The share of a budget at which its owner is told. */
const WARN_AT = 0.8;

/** How far a budget of `amount` is when `spent` of it is. */
export function budgetState(spent: number, amount: number): Budget["state"] {
  if (spent >= amount) return "exhausted";
  return spent >= amount * WARN_AT ? "warned" : "ok";
}
