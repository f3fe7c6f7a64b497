import { InvalidRequestError } from "./errors.ts";

/** Options that are not sent: those of the call and of the connection. */
export const NOT_SENT: ReadonlySet<string> = new Set([
  "signal",
  "timeoutMs",
  "idempotencyKey",
  "url",
  "apiKey",
  "fetch",
  "maxRetries",
]);

/** `memoryMb` -> `memory_mb`. */
function snakeCase(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/**
 * A request body from an options object: names become snake_case, values stay, undefined is left out and so are the
 * options named in `omit`. Options this version does not know are sent too, so that the server refuses a misspelt one
 * by name instead of nobody noticing.
 * @throws InvalidRequestError on a number JSON cannot carry, which would arrive as null.
 */
export function requestJson(options: object, omit: ReadonlySet<string>): string {
  const body: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || omit.has(name)) continue;
    if (typeof value === "number" && !Number.isFinite(value)) {
      throw new InvalidRequestError(`${name} must be a finite number; it is ${value}`, {
        code: "invalid_request",
        details: { issues: [{ path: snakeCase(name), message: "must be a finite number" }] },
      });
    }
    body[snakeCase(name)] = value;
  }
  return JSON.stringify(body);
}
