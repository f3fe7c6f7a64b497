import { CodedError } from "@torpor/protocol";
import { z } from "zod";
import { SENT } from "../../http/api.ts";
import type { RouteDeps } from "../../routes/route-deps.ts";
import type { BuildRecord, BuiltTemplate, TemplateTag } from "../../store/template-store.ts";
import { addE2bRoute } from "../routes/add-e2b-route.ts";
import { e2bTemplateNotFound, notYet } from "../e2b-error.ts";
import { e2bPageLimit } from "../routes/list-query.ts";
import { ENVD_VERSION } from "../shown-e2b-sandbox.ts";
import { ownTemplateOf } from "../template-reference.ts";
import { serverHas } from "./choose-template.ts";

const tagList = z.array(z.string().max(200)).min(1).max(100);
const tagSchema = z.object({ tag: z.string(), buildID: z.string(), createdAt: z.string() });
const namedTemplateSchema = z.object({
  templateID: z.string(),
  names: z.array(z.string()),
  aliases: z.array(z.string()),
  public: z.boolean(),
  createdAt: z.string(),
  updatedAt: z.string(),
});
const templateSchema = namedTemplateSchema.extend({
  buildID: z.string(),
  buildStatus: z.string(),
  buildCount: z.number().int(),
});
const buildSchema = z.object({
  buildID: z.string(),
  status: z.string(),
  createdAt: z.string(),
  updatedAt: z.string(),
  finishedAt: z.string().optional(),
  cpuCount: z.number(),
  memoryMB: z.number(),
  envdVersion: z.string(),
});
const templateWithBuildsSchema = namedTemplateSchema.extend({
  lastSpawnedAt: z.string().nullable(),
  spawnCount: z.number().int(),
  builds: z.array(buildSchema),
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
      if (own === undefined || !(await serverHas(deps.placement, own))) throw e2bTemplateNotFound(alias);
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

  addE2bRoute(
    deps,
    {
      method: "get",
      path: "/templates/{template_id}",
      summary: "Get a template that was built here, with its builds",
      description:
        "The newest build first; `x-next-token` names the next page of them, if there is one. Counted are the sandboxes that are still on record.",
      scope: "sandbox:read",
      query: z.object({ limit: e2bPageLimit, nextToken: z.string().max(80).optional() }),
      answers: { 200: { description: "The template", schema: templateWithBuildsSchema } },
    },
    async (call) => {
      const { scope } = call.caller;
      const { limit, nextToken } = call.query;
      const template = await templates.require(scope, call.param("template_id"));
      const builds = await templates.builds(template);
      const from = nextToken === undefined ? 0 : builds.findIndex(({ id }) => id === nextToken);
      if (from < 0) throw new CodedError("invalid_request", "nextToken names no page of these builds");
      const made = { states: [], metadata: {}, references: [template.id, template.name] };
      const [
        count,
        {
          items: [last],
        },
      ] = await Promise.all([
        deps.sandboxStore.count(scope, made),
        deps.sandboxStore.list(scope, { ...made, limit: 1 }),
      ]);
      const next = builds[from + limit];
      return {
        status: 200,
        body: {
          ...named(template),
          lastSpawnedAt: last === undefined ? null : iso(last.createdAt),
          spawnCount: count,
          builds: await Promise.all(
            builds
              .slice(from, from + limit)
              .map(async (build) => shownBuild(build, await templates.resources(build))),
          ),
        },
        headers: next === undefined ? {} : { "x-next-token": next.id },
      };
    },
  );

  for (const [path, description] of [
    ["/templates/{template_id}", "Of older clients."],
    ["/v2/templates/{template_id}", ""],
  ] as const)
    addE2bRoute(
      deps,
      {
        method: "patch",
        path,
        summary: "Change whether a template is public",
        description: `It is not, and cannot be: \`true\` is refused. ${description}`.trim(),
        scope: "sandbox:write",
        body: z.object({ public: z.boolean().optional() }),
        answers: { 200: { description: "Its names", schema: z.object({ names: z.array(z.string()) }) } },
      },
      async (call) => {
        const template = await templates.require(call.caller.scope, call.param("template_id"));
        if (call.body.public === true)
          throw notYet(
            "public templates",
            "an image holds the memory of whoever built it; build it anew where it is needed",
          );
        return { status: 200, body: { names: [template.name] } };
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
    ...named(template),
    buildID: newest?.id ?? "",
    buildStatus: newest?.status ?? "waiting",
    buildCount: builds.length,
  };
}

function named(template: BuiltTemplate): z.input<typeof namedTemplateSchema> {
  return {
    templateID: template.id,
    names: [template.name],
    aliases: [template.name],
    public: false,
    createdAt: iso(template.createdAt),
    updatedAt: iso(template.updatedAt),
  };
}

function shownBuild(
  build: BuildRecord,
  { cpu, memoryMb }: { cpu: number; memoryMb: number },
): z.input<typeof buildSchema> {
  const updatedAt = iso(build.finishedAt ?? build.createdAt);
  return {
    buildID: build.id,
    status: build.status,
    createdAt: iso(build.createdAt),
    updatedAt,
    ...(build.finishedAt === null ? {} : { finishedAt: updatedAt }),
    cpuCount: cpu,
    memoryMB: memoryMb,
    envdVersion: ENVD_VERSION,
  };
}

function iso(at: number): string {
  return new Date(at).toISOString();
}
