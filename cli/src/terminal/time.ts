import { InvalidArgumentError } from "commander";

/** A time as it is said on the command line. @throws InvalidArgumentError */
export function parseTime(text: string): Date {
  const time = new Date(text);
  if (Number.isNaN(time.getTime()))
    throw new InvalidArgumentError("must be a time, such as 2026-01-31 or 2026-01-31T12:00:00Z");
  return time;
}
