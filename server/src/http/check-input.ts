import { CodedError } from "@torpor/protocol";
import { z } from "zod";

interface InputIssue {
  /** Dotted path of the field, empty for the whole. */
  path: string;
  message: string;
}

/** Fields whose values may be secret: an error names them and keeps their values out. */
const SECRET_FIELDS = new Set(["env", "secrets", "stdin"]);
const PATH_FIELDS = new Set(["path", "source", "destination", "cwd"]);
const MAX_SHOWN_CHARACTERS = 80;
const MAX_ISSUES = 20;

/**
 * Checks what a client sent against its schema.
 *
 * @throws CodedError invalid_request (invalid_path when only paths are at fault) that names each field, what is wrong
 *   with its value and what is accepted; `details.issues` lists them.
 */
export function checkInput<Schema extends z.ZodType>(
  schema: Schema,
  value: unknown,
  what: "body" | "query",
): z.output<Schema> {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  const issues = result.error.issues
    .flatMap((issue) => describe(issue, schema, value, what))
    .slice(0, MAX_ISSUES);
  const onlyPaths = issues.every(({ path }) => PATH_FIELDS.has(path));
  throw new CodedError(
    onlyPaths ? "invalid_path" : "invalid_request",
    issues.map(({ path, message }) => (path === "" ? message : `${path} ${message}`)).join("; "),
    {
      details: { issues },
    },
  );
}

function describe(
  issue: z.core.$ZodIssue,
  schema: z.ZodType,
  value: unknown,
  what: "body" | "query",
): InputIssue[] {
  if (issue.code === "unrecognized_keys") {
    const accepted = schema instanceof z.ZodObject ? Object.keys(schema.shape).join(", ") : "";
    const kind = what === "body" ? "field" : "query parameter";
    return issue.keys.map((key) => ({
      path: [...issue.path, key].join(".").slice(0, 200),
      message: `is not a ${kind} of this request${issue.path.length === 0 && accepted !== "" ? `; accepted: ${accepted}` : ""}`,
    }));
  }
  const path = issue.path.map(String).join(".").slice(0, 200);
  if (issue.code === "invalid_union") {
    // The branch that got furthest says most: a wrong element of an array, rather than "not a string".
    const branch = (
      issue.errors.find((errors) =>
        errors.some((error) => error.path.length > 0 || error.code === "unrecognized_keys"),
      ) ?? issue.errors.find((errors) => errors.some((error) => error.code !== "invalid_type"))
    )?.[0];
    if (branch !== undefined)
      return describe({ ...branch, path: [...issue.path, ...branch.path] }, schema, value, what);
    const expected = issue.errors.flatMap((errors) =>
      errors.map((error) => ("expected" in error ? String(error.expected) : error.message)),
    );
    return [{ path, message: `must be ${[...new Set(expected)].join(" or ")}${shown(issue.path, value)}` }];
  }
  if (issue.code === "invalid_key")
    return [
      { path, message: `is not a name that is accepted here: ${issue.issues[0]?.message ?? issue.message}` },
    ];
  if (issue.code === "invalid_type" && issue.message.startsWith("Invalid input")) {
    const found = valueAt(issue.path, value);
    if (found === undefined) return [{ path, message: "is required" }];
    return [{ path, message: `must be ${article(issue.expected)}${shown(issue.path, value)}` }];
  }
  if (issue.code === "invalid_value") {
    return [
      {
        path,
        message: `must be ${issue.message.startsWith("Invalid") ? `one of ${issue.values.map(String).join(", ")}` : issue.message}${shown(issue.path, value)}`,
      },
    ];
  }
  if (issue.code === "too_small" && issue.message.startsWith("Too small")) {
    const unit = issue.origin === "string" ? " characters" : issue.origin === "array" ? " items" : "";
    return [
      {
        path,
        message: `must be ${issue.inclusive === false ? "more than" : "at least"} ${issue.minimum}${unit}${shown(issue.path, value)}`,
      },
    ];
  }
  if (issue.code === "too_big" && issue.message.startsWith("Too big")) {
    const unit = issue.origin === "string" ? " characters" : issue.origin === "array" ? " items" : "";
    return [
      {
        path,
        message: `must be ${issue.inclusive === false ? "less than" : "at most"} ${issue.maximum}${unit}${shown(issue.path, value)}`,
      },
    ];
  }
  const namesValue = issue.message.includes(JSON.stringify(valueAt(issue.path, value)) ?? "undefined");
  return [{ path, message: namesValue ? issue.message : `${issue.message}${shown(issue.path, value)}` }];
}

function article(type: string): string {
  return /^[aeio]/.test(type) && type !== "one" ? `an ${type}` : `a ${type}`;
}

function valueAt(path: readonly PropertyKey[], value: unknown): unknown {
  let found = value;
  for (const step of path) {
    if (typeof found !== "object" || found === null) return undefined;
    found = (found as Record<PropertyKey, unknown>)[step];
  }
  return found;
}

function shown(path: readonly PropertyKey[], value: unknown): string {
  if (SECRET_FIELDS.has(String(path[0]))) return "";
  const found = valueAt(path, value);
  if (found === undefined) return "";
  const text = JSON.stringify(found);
  return `, but is ${text.length > MAX_SHOWN_CHARACTERS ? `${text.slice(0, MAX_SHOWN_CHARACTERS)}… (${text.length} characters)` : text}`;
}
