import { InvalidRequestError } from "./errors.ts";

export type QueryValue = string | number | boolean | undefined;

/**
 * `value` as one segment of a path. @throws InvalidRequestError when it is empty or a dot segment, which would address
 * another resource.
 */
export function pathSegment(field: string, value: string | number): string {
  const text = String(value);
  if (text === "" || text === "." || text === "..") {
    throw new InvalidRequestError(`${field} must be a name or id; it is ${JSON.stringify(text)}`, {
      code: "invalid_request",
      details: { issues: [{ path: field, message: "must be a name or id" }] },
    });
  }
  return encodeURIComponent(text);
}

/** `?a=1&b=2`, or nothing; undefined values are left out. */
export function queryString(query: Readonly<Record<string, QueryValue>> | undefined): string {
  if (!query) return "";
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query))
    if (value !== undefined) params.append(name, String(value));
  const text = params.toString();
  return text === "" ? "" : `?${text}`;
}
