import type { OpenAPIHono } from "@hono/zod-openapi";
import type { HttpBindings } from "@hono/node-server";
import { ERROR_CODES } from "@torpor/protocol";
import { VERSION } from "../version.ts";
import { NAMED_SCHEMAS, withReferences } from "./named-schemas.ts";

/** The OpenAPI 3.1 document, as far as this code reads it. */
export interface OpenApiDocument {
  openapi: string;
  info: { title: string; version: string; description?: string };
  tags?: { name: string; description?: string }[];
  components?: { schemas?: Record<string, JsonSchema> };
  paths: Record<string, Record<string, OpenApiOperation>>;
  [key: string]: unknown;
}

export interface OpenApiOperation {
  tags?: string[];
  summary?: string;
  description?: string;
  parameters?: { name: string; in: string; required?: boolean; description?: string; schema?: JsonSchema }[];
  requestBody?: { content: Record<string, { schema?: JsonSchema }> };
  responses: Record<string, { description: string; content?: Record<string, { schema?: JsonSchema }> }>;
  [key: string]: unknown;
}

export interface JsonSchema {
  $ref?: string;
  type?: string | string[];
  description?: string;
  properties?: Record<string, JsonSchema>;
  required?: string[];
  items?: JsonSchema;
  anyOf?: JsonSchema[];
  oneOf?: JsonSchema[];
  enum?: unknown[];
  const?: unknown;
  default?: unknown;
  format?: string;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
  additionalProperties?: unknown;
  [key: string]: unknown;
}

const TAGS = [
  { name: "sandboxes", description: "Make, find and end sandboxes." },
  { name: "lifecycle", description: "Sleep, wake, fork and keep sandboxes." },
  { name: "snapshots", description: "A sandbox's memory and files at one instant." },
  { name: "exec", description: "Run commands and follow them." },
  { name: "code", description: "Notebook kernels." },
  { name: "files", description: "Files and folders inside a sandbox." },
  { name: "ports", description: "Programs that listen inside a sandbox, for its owner and for visitors." },
  { name: "templates", description: "What sandboxes are made from." },
  { name: "cost", description: "Which shape to pick, and what it costs." },
  { name: "accounts", description: "Who has API keys, and what each may have at most." },
  { name: "keys", description: "API keys." },
  { name: "ledger", description: "Who held what, and proof of it." },
  { name: "operation", description: "Health and figures." },
  {
    name: "e2b",
    description:
      "The REST API of E2B's clients, for those who have them. Errors are `{code, message}`, `code` being the status.",
  },
];

/** The document of everything the application serves. Same routes, same text: keys are in a fixed order. */
export function openApiDocument(app: OpenAPIHono<{ Bindings: HttpBindings }>): OpenApiDocument {
  app.openAPIRegistry.registerComponent("securitySchemes", "apiKey", {
    type: "http",
    scheme: "bearer",
    description:
      "`Authorization: Bearer tp_…`, or the same key as `X-API-Key`. Each operation names the scope it needs. `sandbox:write` and `sandbox:exec` hold `sandbox:read`; `admin` holds all but `operator`, `operator` all; within the key's account, and its tenant if it is bound to one.",
  });
  for (const [name, schema] of Object.entries(NAMED_SCHEMAS))
    app.openAPIRegistry.register(name, schema.clone());
  const document = app.getOpenAPI31Document({
    openapi: "3.1.0",
    info: {
      title: "Torpor",
      version: VERSION,
      license: { name: "Apache-2.0" },
      description: `Sandboxes for AI agents. Errors are \`{"error": {code, message, details, request_id, retryable}}\`; the codes are ${Object.entries(
        ERROR_CODES,
      )
        .map(([code, { status }]) => `\`${code}\` (${status})`)
        .join(", ")}. Times are RFC 3339 UTC. Every answer carries \`x-request-id\`.`,
    },
    tags: TAGS,
  });
  const referenced = withReferences(document, document.components?.schemas ?? {});
  return sorted(referenced) as OpenApiDocument;
}

/** The document's file form. */
export function openApiText(document: OpenApiDocument): string {
  return `${JSON.stringify(document, null, 2)}\n`;
}

function sorted(value: unknown, depth = 0): unknown {
  if (Array.isArray(value)) return value.map((item) => sorted(item, depth + 1));
  if (typeof value !== "object" || value === null) return value;
  const entries = Object.entries(value);
  // Paths in alphabetical order; everything else as the routes and schemas write it, which is stable.
  if (depth === 1 && entries.every(([key]) => key.startsWith("/")))
    entries.sort(([a], [b]) => (a < b ? -1 : 1));
  return Object.fromEntries(entries.map(([key, item]) => [key, sorted(item, depth + 1)]));
}
