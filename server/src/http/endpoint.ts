import type { RouteConfig } from "@hono/zod-openapi";
import type { Scope } from "@torpor/protocol";
import { z } from "zod";
import type { ShowError } from "./answer.ts";
import { errorSchema } from "./error-schema.ts";

type Method = "get" | "post" | "put" | "patch" | "delete";
/** What the reference shows of an endpoint that takes any method. */
const METHODS: readonly Method[] = ["get", "post", "put", "patch", "delete"];

/** What the reference says of one possible answer. */
interface DocumentedAnswer {
  description: string;
  schema?: z.ZodType;
  /** Default `application/json`. */
  mediaType?: string;
}

export interface EndpointDefinition<Query extends z.ZodType, Body extends z.ZodType> {
  /** `any`: every method there is. */
  method: Method | "any";
  /** With `{name}` for its variable parts, and `{name*}` at its end for one that may hold slashes. */
  path: string;
  tag: string;
  summary: string;
  description?: string;
  /** Scope the API key needs; null for a route open to all. */
  scope: Scope | null;
  /** Query parameters; without it any are let pass unread. */
  query?: Query;
  /** JSON body, read and checked. Without it the body is left to the endpoint. */
  body?: Body;
  /** Media type of a raw body, for the reference. */
  rawBody?: string;
  /** Largest JSON body, bytes. Default 2 MiB. */
  maxBodyBytes?: number;
  answers: Record<number, DocumentedAnswer>;
  /** What its errors look like. Default: the envelope. */
  showError?: ShowError;
}

/** Which paths are the endpoint's, whatever their method. */
export function pathPattern(path: string): RegExp {
  const literal = path.replaceAll(/[.*+?^$()|[\]\\]/g, String.raw`\$&`);
  return new RegExp(`^${literal.replaceAll(/\{\w+\}/g, "[^/]+").replace(/\{\w+\\\*\}$/, ".*")}$`);
}

/** The endpoint as its router has it. */
export function routerPath(path: string): string {
  return path.replaceAll(/\{(\w+)\}/g, ":$1").replace(/\{(\w+)\*\}$/, ":$1{.*}");
}

/** The entries of an endpoint in the reference, one for each method. */
export function referenceEntries<Query extends z.ZodType, Body extends z.ZodType>(
  definition: EndpointDefinition<Query, Body>,
): RouteConfig[] {
  const methods = definition.method === "any" ? METHODS : [definition.method];
  return methods.map((method) => toRouteConfig(definition, method));
}

function toRouteConfig<Query extends z.ZodType, Body extends z.ZodType>(
  definition: EndpointDefinition<Query, Body>,
  method: Method,
): RouteConfig {
  const names = [...definition.path.matchAll(/\{(\w+)\*?\}/g)].map((match) => match[1] ?? "");
  const request: NonNullable<RouteConfig["request"]> = {};
  if (names.length > 0)
    request.params = z.object(Object.fromEntries(names.map((name) => [name, z.string()])));
  if (definition.query instanceof z.ZodObject) request.query = definition.query;
  if (definition.body !== undefined)
    request.body = { required: true, content: { "application/json": { schema: definition.body } } };
  else if (definition.rawBody !== undefined)
    request.body = {
      required: true,
      content: { [definition.rawBody]: { schema: z.string().meta({ format: "binary" }) } },
    };
  if (method === "post" && definition.method !== "any" && definition.scope !== null) {
    request.headers = z.object({
      "Idempotency-Key": z
        .string()
        .max(255)
        .optional()
        .describe("The same key with the same body gives the first answer again; nothing runs twice."),
    });
  }
  const responses: RouteConfig["responses"] = {};
  for (const [status, answer] of Object.entries(definition.answers)) {
    responses[status] = {
      description: answer.description,
      ...(answer.schema === undefined && answer.mediaType === undefined
        ? {}
        : { content: { [answer.mediaType ?? "application/json"]: { schema: answer.schema ?? z.string() } } }),
    };
  }
  responses["default"] = {
    description: "An error",
    content: { "application/json": { schema: errorSchema } },
  };
  return {
    method,
    path: definition.path.replace("*}", "}"),
    tags: [definition.tag],
    summary: definition.summary,
    ...(definition.description === undefined ? {} : { description: definition.description }),
    ...(definition.scope === null
      ? { security: [] }
      : { security: [{ apiKey: [] }], "x-scope": definition.scope }),
    request,
    responses,
  };
}
