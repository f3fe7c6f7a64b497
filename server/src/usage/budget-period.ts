import type { BudgetPeriod } from "@torpor/protocol";

/** When the period of a moment began, and when the next one begins, Unix milliseconds, UTC. */
export function periodAt(period: BudgetPeriod, now: number): { from: number; to: number } {
  const date = new Date(now);
  const [year, month, day] = [date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate()];
  return period === "day"
    ? { from: Date.UTC(year, month, day), to: Date.UTC(year, month, day + 1) }
    : { from: Date.UTC(year, month, 1), to: Date.UTC(year, month + 1, 1) };
}
