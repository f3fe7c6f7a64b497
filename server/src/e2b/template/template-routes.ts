import { z } from "zod";
import { SENT } from "../../http/api.ts";
import type { RouteDeps } from "../../routes/route-deps.ts";
import type { BuildRecord, BuiltTemplate, TemplateTag } from "../../store/template-store.ts";
import { addE2bRoute } from "../routes/add-e2b-route.ts";
import { e2bTemplateNotFound } from "../e2b-error.ts";
import { ownTemplateOf } from "../template-reference.ts";

const tagList = z.array(z.string().max(200)).min(1).max(100);
const tagSchema = z.object({ tag: z.string(), buildID: z.string(), createdAt: z.string() });
const templateSchema = z.object({
  templateID: z.string(),
  buildID: z.string(),
  buildStatus: z.string(),
  buildCount: z.number().int(),
  names: z.array(z.string()),
  aliases: z.array(z.string()),
  public: z.boolean(),
  createdAt: z.string(),
  updatedAt: z.string(),
});

/** Names, tags and lists of built templates, as E2B's clients ask for them. */
export function addE2bTemplateRoutes(deps: RouteDeps): void {
  const { templates } = deps;

  addE2bRoute(
    deps,
    {
      method: "get",
      path: "/templates/aliases/{alias}",
      summary: "Ask whether a template of a name exists",
      scope: "sandbox:read",
      answers: {
        200: { description: "It does", schema: z.object({ templateID: z.string(), public: z.boolean() }) },
      },
    },
    async (call) => {
      const alias = call.param("alias");
      const built = await templates.find(call.caller.scope, alias);
      if (built !== undefined) return { status: 200, body: { templateID: built.id, public: false } };
      const own = ownTemplateOf(alias);
      const host = await deps.placement.choose({ cpu: 0, memoryMb: 0, diskMb: 0 });
      const isHere = (await host.client.listTemplates()).some(({ name }) => name === own);
      if (own === undefined || !isHere) throw e2bTemplateNotFound(alias);
      return { status: 200, body: { templateID: own, public: true } };
    },
  );

  addE2bRoute(
    deps,
    {
      method: "post",
      path: "/templates/tags",
      summary: "Give tags to a build",
      description:
        "To the one that `target`, `name:tag`, stands for; what the tags stood for before loses them.",
      scope: "sandbox:write",
      body: z.object({ target: z.string().max(400), tags: tagList }),
      answers: {
        201: {
          description: "The build",
          schema: z.object({ buildID: z.string(), tags: z.array(z.string()) }),
        },
      },
    },
    async (call) => {
      const { target, tags } = call.body;
      const build = await templates.assign(call.caller.scope, target, tags);
      return { status: 201, body: { buildID: build.id, tags } };
    },
  );

  addE2bRoute(
    deps,
    {
      method: "delete",
      path: "/templates/tags",
      summary: "Take tags away",
      description:
        "A build that has none left cannot be made sandboxes from any more, and its image is removed.",
      scope: "sandbox:write",
      body: z.object({ name: z.string().max(400), tags: tagList }),
      answers: { 204: { description: "They are gone" } },
    },
    async (call) => {
      await templates.unassign(call.caller.scope, call.body.name, call.body.tags);
      call.outgoing.writeHead(204).end();
      return SENT;
    },
  );

  addE2bRoute(
    deps,
    {
      method: "get",
      path: "/templates/{template_id}/tags",
      summary: "List the tags of a template",
      scope: "sandbox:read",
      answers: { 200: { description: "Its tags", schema: z.array(tagSchema) } },
    },
    async (call) => {
      const template = await templates.require(call.caller.scope, call.param("template_id"));
      return { status: 200, body: (await templates.tags(template)).map(shownTag) };
    },
  );

  for (const path of ["/templates", "/v2/templates"])
    addE2bRoute(
      deps,
      {
        method: "get",
        path,
        summary: "List templates that were built here",
        scope: "sandbox:read",
        answers: { 200: { description: "The newest 1000", schema: z.array(templateSchema) } },
      },
      async (call) => {
        const listed = await templates.list(call.caller.scope);
        const body = [];
        for (const template of listed) body.push(shownTemplate(template, await templates.builds(template)));
        return { status: 200, body };
      },
    );
}

function shownTag({ tag, buildId, createdAt }: TemplateTag): z.input<typeof tagSchema> {
  return { tag, buildID: buildId, createdAt: iso(createdAt) };
}

function shownTemplate(
  template: BuiltTemplate,
  builds: readonly BuildRecord[],
): z.input<typeof templateSchema> {
  const [newest] = builds;
  return {
    templateID: template.id,
    buildID: newest?.id ?? "",
    buildStatus: newest?.status ?? "waiting",
    buildCount: builds.length,
    names: [template.name],
    aliases: [template.name],
    public: false,
    createdAt: iso(template.createdAt),
    updatedAt: iso(template.updatedAt),
  };
}

function iso(at: number): string {
  return new Date(at).toISOString();
}
