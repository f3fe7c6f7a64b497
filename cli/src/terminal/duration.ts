import { InvalidArgumentError } from "commander";

const UNIT_SECONDS: Record<string, number> = { s: 1, m: 60, h: 3_600, d: 86_400, w: 604_800 };

/** A time of the command line, such as `30d`, `12h`, `90m` or `45s`, in seconds; a bare number is seconds. */
export function parseDuration(text: string): number {
  const match = /^(\d+(?:\.\d+)?)([smhdw]?)$/.exec(text.trim());
  const seconds = Number(match?.[1]) * (UNIT_SECONDS[match?.[2] || "s"] ?? Number.NaN);
  if (!Number.isInteger(seconds))
    throw new InvalidArgumentError("It must be a time such as 30d, 12h, 90m or 45s.");
  return seconds;
}
