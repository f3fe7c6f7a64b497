import type { JsonSchema, OpenApiDocument, OpenApiOperation } from "./document.ts";

/** The reference as one HTML page: no script, no font, no picture from elsewhere. */
export function docsPage(document: OpenApiDocument): string {
  const sections = (document.tags ?? []).map((tag) => {
    const operations = Object.entries(document.paths).flatMap(([path, methods]) =>
      Object.entries(methods)
        .filter(([, operation]) => operation.tags?.includes(tag.name) === true)
        .map(([method, operation]) => operationHtml(method, path, operation)),
    );
    return `<section id="${escape(tag.name)}"><h2>${escape(tag.name)}</h2><p>${text(tag.description ?? "")}</p>${operations.join("")}</section>`;
  });
  const shapes = Object.entries(document.components?.schemas ?? {}).map(
    ([name, schema]) => `<div id="schema-${escape(name)}">${body(name, schema)}</div>`,
  );
  const links = [...(document.tags ?? []), { name: "shapes" }]
    .map(({ name }) => `<a href="#${escape(name)}">${escape(name)}</a>`)
    .join(" ");
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escape(document.info.title)} API reference</title><style>${STYLE}</style></head>
<body><header><h1>${escape(document.info.title)} <small>${escape(document.info.version)}</small></h1>
<p>${text(document.info.description ?? "")}</p>
<p>The same as a document for tools: <a href="/v1/openapi.json">/v1/openapi.json</a>. Terminals are WebSockets at <code>/v1/sandboxes/{id}/pty?cols=&amp;rows=&amp;cmd=&amp;cwd=&amp;user=</code>:
binary messages are the terminal's bytes, text is <code>{"type":"resize","cols":80,"rows":24}</code> from the client and <code>{"type":"exit","exit_code":0}</code> from the server.</p>
<nav>${links}</nav></header><main>${sections.join("")}<section id="shapes"><h2>shapes</h2>${shapes.join("")}</section></main></body></html>
`;
}

const STYLE = `
:root{color-scheme:light dark;--line:#8884;--soft:#8881}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:0 auto;padding:1rem}
h1 small{font-weight:400;opacity:.6}nav a{margin-right:1rem}
code,pre{font:14px/1.45 ui-monospace,monospace}code{background:var(--soft);padding:.1em .3em;border-radius:3px;overflow-wrap:anywhere}
details{border:1px solid var(--line);border-radius:6px;margin:.5rem 0;padding:.5rem .75rem}
summary{cursor:pointer}summary code{background:none}
.method{display:inline-block;min-width:4.2em;font-weight:600;text-transform:uppercase}
table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;border-top:1px solid var(--line);padding:.3rem .5rem .3rem 0}
th{font-weight:600}.soft{opacity:.7}`;

function operationHtml(method: string, path: string, operation: OpenApiOperation): string {
  const parts = [`<p>${text(operation.description ?? "")}</p>`];
  const scope = operation["x-scope"];
  parts.push(
    `<p class="soft">${typeof scope === "string" ? `Needs the scope <code>${escape(scope)}</code>.` : "Open to all."}</p>`,
  );
  if (operation.parameters !== undefined && operation.parameters.length > 0) {
    parts.push(
      table(
        "Parameters",
        operation.parameters.map(({ name, in: place, required, schema, description }) => ({
          name: `${name} (${place})`,
          kind: kind(schema),
          note: [required === true ? "required" : "", description ?? schema?.description ?? ""]
            .filter(Boolean)
            .join("; "),
        })),
      ),
    );
  }
  for (const [mediaType, { schema }] of Object.entries(operation.requestBody?.content ?? {}))
    parts.push(body(`Body: ${mediaType}`, schema));
  for (const [status, answer] of Object.entries(operation.responses)) {
    if (status === "default") continue;
    const [content] = Object.entries(answer.content ?? {});
    parts.push(
      content === undefined
        ? `<h4>${escape(status)}: ${text(answer.description)}</h4>`
        : body(`${status}: ${answer.description} (${content[0]})`, content[1].schema),
    );
  }
  return `<details><summary><span class="method">${escape(method)}</span> <code>${escape(path)}</code> ${text(operation.summary ?? "")}</summary>${parts.join("")}</details>`;
}

function body(title: string, schema: JsonSchema | undefined): string {
  const { properties, $ref } = schema ?? {};
  if ($ref !== undefined) {
    const name = refName($ref);
    return `<h4>${text(title)}: <a href="#schema-${escape(name)}">${escape(name)}</a></h4>`;
  }
  if (properties === undefined) return `<h4>${text(title)}</h4>`;
  const required = new Set(schema?.required);
  return table(
    title,
    Object.entries(properties).map(([name, property]) => ({
      name,
      kind: kind(property),
      note: [
        required.has(name) ? "required" : "",
        property.default === undefined ? "" : `default ${JSON.stringify(property.default)}`,
        property.description ?? "",
      ]
        .filter(Boolean)
        .join("; "),
    })),
  );
}

function table(title: string, rows: { name: string; kind: string; note: string }[]): string {
  const lines = rows.map(
    (row) =>
      `<tr><td><code>${escape(row.name)}</code></td><td>${escape(row.kind)}</td><td>${text(row.note)}</td></tr>`,
  );
  return `<h4>${text(title)}</h4><table><tr><th>Name</th><th>Type</th><th></th></tr>${lines.join("")}</table>`;
}

function kind(schema: JsonSchema | undefined): string {
  if (schema === undefined) return "";
  if (schema.$ref !== undefined) return refName(schema.$ref);
  if (schema.enum !== undefined) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  const either = schema.anyOf ?? schema.oneOf;
  if (either !== undefined) return either.map(kind).join(" | ");
  if (schema.properties !== undefined) return `{${Object.keys(schema.properties).join(", ")}}`;
  const type = Array.isArray(schema.type) ? schema.type.join(" | ") : (schema.type ?? "any");
  const bounds = [
    schema.minimum === undefined ? "" : `>= ${schema.minimum}`,
    schema.exclusiveMinimum === undefined ? "" : `> ${schema.exclusiveMinimum}`,
    schema.maximum === undefined ? "" : `<= ${schema.maximum}`,
    schema.maxLength === undefined ? "" : `at most ${schema.maxLength} characters`,
  ].filter(Boolean);
  const name = type === "array" ? `array of ${kind(schema.items)}` : type;
  return bounds.length === 0 ? name : `${name}, ${bounds.join(", ")}`;
}

function refName(reference: string): string {
  return reference.slice(reference.lastIndexOf("/") + 1);
}

/** Escaped, with `code` in backquotes set as code. */
function text(markdown: string): string {
  return escape(markdown).replaceAll(/`([^`]+)`/g, "<code>$1</code>");
}

function escape(plain: string): string {
  return plain
    .replaceAll("&", "&amp;")
    .replaceAll("<", "&lt;")
    .replaceAll(">", "&gt;")
    .replaceAll('"', "&quot;");
}
