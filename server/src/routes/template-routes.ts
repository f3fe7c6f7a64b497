import { pipeline } from "node:stream/promises";
import {
  buildTemplateSchema,
  CodedError,
  type Template,
  templateNameSchema,
  templateSchema,
} from "@torpor/protocol";
import { z } from "zod";
import { requireWholeServer } from "../auth/whole-server.ts";
import type { HostClient } from "../host/host-client.ts";
import { type Call, SENT } from "../http/api.ts";
import { checkInput } from "../http/check-input.ts";
import type { RouteDeps } from "./route-deps.ts";

/** Templates lie on hosts; every host of this server is told the same. */
export function addTemplateRoutes(deps: RouteDeps): void {
  const { api } = deps;
  api.add(
    {
      method: "get",
      path: "/v1/templates",
      tag: "templates",
      summary: "List templates",
      scope: "sandbox:read",
      answers: {
        200: {
          description: "Templates that can be used",
          schema: z.object({ items: z.array(templateSchema) }),
        },
      },
    },
    async () => ({ status: 200, body: { items: await (await anyHost(deps)).listTemplates() } }),
  );

  api.add(
    {
      method: "get",
      path: "/v1/templates/{name}",
      tag: "templates",
      summary: "Get a template",
      scope: "sandbox:read",
      answers: { 200: { description: "The template", schema: templateSchema } },
    },
    async (call) => {
      const name = call.param("name");
      const templates = await (await anyHost(deps)).listTemplates();
      const template: Template | undefined = templates.find((candidate) => candidate.name === name);
      if (template === undefined) {
        const known = templates.map((candidate) => candidate.name).join(", ");
        throw new CodedError(
          "template_not_found",
          `there is no template ${name.slice(0, 80)}; built are: ${known === "" ? "none yet" : known}`,
        );
      }
      return { status: 200, body: template };
    },
  );

  api.add(
    {
      method: "post",
      path: "/v1/templates/{name}/build",
      tag: "templates",
      summary: "Build a template",
      description:
        "From its recipe, or from a container image (`image`). NDJSON: `progress` lines, then `done` or `error`. Templates are addressed by content, so building one that exists is quick and harmless: an Idempotency-Key adds nothing. For the operator's account, with a key bound to no tenant.",
      scope: "template:write",
      query: buildTemplateSchema,
      answers: { 200: { description: "Progress", mediaType: "application/x-ndjson" } },
    },
    async (call) => {
      const scope = requireWholeServer(call.caller, "templates");
      const host = await anyHost(deps);
      const body = Buffer.from(JSON.stringify(call.query));
      const answer = await host.buildTemplate(scope, templateName(call), body, call.signal);
      call.outgoing.writeHead(200, {
        "content-type": "application/x-ndjson",
        "cache-control": "no-cache, no-transform",
        "x-accel-buffering": "no",
      });
      call.outgoing.flushHeaders();
      await pipeline(answer, call.outgoing);
      return SENT;
    },
  );

  api.add(
    {
      method: "delete",
      path: "/v1/templates/{name}",
      tag: "templates",
      summary: "Delete a template",
      description:
        "Sandboxes made from it live on. For the operator's account, with a key bound to no tenant.",
      scope: "template:write",
      answers: { 204: { description: "Deleted" } },
    },
    async (call) => {
      const scope = requireWholeServer(call.caller, "templates");
      await (await anyHost(deps)).deleteTemplate(scope, templateName(call));
      call.outgoing.writeHead(204).end();
      return SENT;
    },
  );
}

async function anyHost(deps: RouteDeps): Promise<HostClient> {
  return (await deps.placement.choose({ cpu: 0, memoryMb: 0, diskMb: 0 })).client;
}

function templateName(call: Call<unknown, unknown>): string {
  return checkInput(z.object({ name: templateNameSchema }), { name: call.param("name") }, "query").name;
}
