import { InvalidArgumentError } from "commander";

const UNIT_SECONDS: Record<string, number> = { s: 1, m: 60, h: 3_600, d: 86_400, w: 604_800 };

/** A time of the command line, such as `30d`, `12h`, `90m` or `45s`, in whole seconds; a bare number is seconds. */
export function parseDuration(text: string): number {
  const seconds = parseTimeLimit(text);
  if (!Number.isInteger(seconds)) throw new InvalidArgumentError("It must be a whole number of seconds.");
  return seconds;
}

/** The same for what may be a part of a second, such as `0.5` or `1.5m`. */
export function parseTimeLimit(text: string): number {
  const seconds = secondsOf(text);
  if (!Number.isFinite(seconds))
    throw new InvalidArgumentError("It must be a time such as 30d, 12h, 90m, 45s or 600 (seconds).");
  return seconds;
}

/** Seconds of a time as above; NaN for what is none. */
export function secondsOf(text: string): number {
  const match = /^(\d+(?:\.\d+)?|\.\d+)([smhdw]?)$/.exec(text.trim());
  return Number(match?.[1]) * (UNIT_SECONDS[match?.[2] || "s"] ?? Number.NaN);
}
