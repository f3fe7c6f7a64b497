import type { Advice } from "@torpor/sdk";
import { formatBytes, formatDuration } from "../output/quantities.ts";
import type { Style } from "../output/style.ts";
import { renderTable } from "../output/table.ts";

/** An amount for a person: enough digits to compare by. */
export function formatMoney(amount: number, currency: string): string {
  const digits = amount >= 100 ? 0 : amount >= 1 ? 2 : 4;
  return `${amount.toFixed(digits)} ${currency}`;
}

/** A wait for a person. */
export const formatWait = (ms: number): string => (ms < 1_000 ? `${Math.round(ms)} ms` : formatDuration(ms));

const ANSWERS = { yes: "yes", no: "no", unknown: "?" } as const;

/** An advice as a person reads it. */
export function renderAdvice(advice: Advice, style: Style): string {
  const { facts, breakEven, settings } = advice;
  const { currency } = facts.prices;
  const steps = advice.steps.map((step) => {
    const line = `${step.decides ? ">" : " "} ${step.asks} ${ANSWERS[step.answer]}`;
    return `${step.decides ? style.bold(line) : line}\n    ${step.reason}`;
  });
  const chosen = Object.entries(settings).map(
    ([name, value]) => `${name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)}=${String(value)}`,
  );
  const costs = renderTable(
    ["", "POLICY", "COST A DAY", "COLD STARTS", "WAKES", "WAIT P50", "P95"],
    advice.costs.map((cost) => [
      cost.advised ? ">" : "",
      cost.label,
      formatMoney(cost.costPerDay, currency),
      perDay(cost.coldStartsPerDay),
      perDay(cost.wakesPerDay),
      formatWait(cost.waitP50Ms),
      formatWait(cost.waitP95Ms),
    ]),
  );
  const times = (["createSeconds", "hibernateSeconds", "wakeSeconds"] as const).map(
    (name) =>
      `${name.slice(0, -"Seconds".length)} ${formatWait(facts[name].value * 1_000)} (${seen(facts[name])})`,
  );
  return [
    `${style.bold(advice.shape.toUpperCase())}: ${advice.reason}`,
    "",
    ...steps,
    "",
    `settings   ${chosen.join(" ")}`,
    ...advice.lost.map(({ kind, when }) => `lost       ${kind}: ${when}`),
    "",
    costs,
    "",
    `sleeping costs less than staying awake  ${from(breakEven.sleepBeatsAwakeSeconds)}`,
    `rebuilding costs less than sleeping     ${from(breakEven.rebuildBeatsSleepSeconds)}`,
    "",
    `counted with  ${times.join(", ")}, image ${formatBytes(facts.imageBytes.value)} (${seen(facts.imageBytes)})`,
    `              ${facts.cpu} cores, ${facts.memoryMb} MB, set-up ${formatDuration(facts.setupSeconds * 1_000)}, a use of ${formatDuration(facts.useSeconds * 1_000)} every ${formatDuration((facts.idleGapSeconds + facts.useSeconds) * 1_000)} (${facts.from.idleGapSeconds})`,
    ...advice.notes.map((note) => `note: ${note}`),
  ].join("\n");
}

const perDay = (count: number): string => String(Number(count.toFixed(count < 10 ? 2 : 0)));

const from = (seconds: number | null): string =>
  seconds === null ? "never" : `from a gap of ${formatDuration(seconds * 1_000)} on`;

function seen({ measured, samples, source }: Advice["facts"]["wakeSeconds"]): string {
  if (!measured) return "documented, not measured here";
  return `measured here, ${samples} of ${source === "machine" ? "other templates" : `this ${source}`}`;
}
