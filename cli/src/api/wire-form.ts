/** Keys below these are the user's own words and stay as they are. */
const OPAQUE = new Set(["metadata", "env"]);

/** An object of the client library as the API writes it: snake_case, dates as RFC 3339. */
export function wireForm(value: unknown): unknown {
  if (value instanceof Date) return value.toISOString();
  if (Array.isArray(value)) return value.map(wireForm);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, entry]) => [
      key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
      OPAQUE.has(key) ? entry : wireForm(entry),
    ]),
  );
}
