import { z } from "zod";
import type { TenantScope } from "../../auth/tenant-scope.ts";
import type { RouteDeps } from "../../routes/route-deps.ts";
import { refused } from "../../sandbox/create-plan.ts";
import type { SandboxFilter } from "../../store/sandbox-list.ts";
import { listedSandbox, listedSandboxSchema } from "../shown-e2b-sandbox.ts";
import { ownTemplateOf, snapshotIdOf } from "../template-reference.ts";
import { addE2bRoute } from "./add-e2b-route.ts";
import { listV2Query, metadataPairs, STATES } from "./list-query.ts";

/** Most of the list without pages. */
const MOST_LISTED = 1_000;

/** List sandboxes, as E2B's clients do. */
export function addE2bListRoutes(deps: RouteDeps): void {
  const { sandboxStore } = deps;

  addE2bRoute(
    deps,
    {
      method: "get",
      path: "/v2/sandboxes",
      summary: "List running and paused sandboxes",
      description:
        "`x-next-token` names the next page, if there is one; `x-total-running` says how many run on all of them.",
      scope: "sandbox:read",
      query: listV2Query,
      answers: { 200: { description: "One page", schema: z.array(listedSandboxSchema) } },
    },
    async (call) => {
      const { metadata, state, startedAfter, template, order, limit, nextToken } = call.query;
      if (template?.includes(":") === true)
        throw refused("template", `is ${template}, but a list takes the name of a template without a tag`);
      const { scope } = call.caller;
      const ofTemplate = template === undefined ? {} : await templateFilter(deps, scope, template);
      // Nothing is made from what cannot be the name of a template.
      if (ofTemplate === undefined)
        return {
          status: 200,
          body: [],
          headers: state.includes("running") ? { "x-total-running": "0" } : {},
        };
      const match = {
        states: state,
        metadata: metadataPairs(metadata),
        ...ofTemplate,
        ...(startedAfter === undefined ? {} : { createdFrom: startedAfter }),
      };
      const running = state.filter((each) => STATES.running.includes(each));
      const [page, total] = await Promise.all([
        sandboxStore.list(scope, {
          ...match,
          limit,
          isAscending: order === "asc",
          ...(nextToken === undefined ? {} : { cursor: nextToken }),
        }),
        running.length === 0 ? undefined : sandboxStore.count(scope, { ...match, states: running }),
      ]);
      return {
        status: 200,
        body: page.items.map(listedSandbox),
        headers: {
          ...(page.nextCursor === null ? {} : { "x-next-token": page.nextCursor }),
          ...(total === undefined ? {} : { "x-total-running": String(total) }),
        },
      };
    },
  );

  addE2bRoute(
    deps,
    {
      method: "get",
      path: "/sandboxes",
      summary: "List running sandboxes",
      description: "The newest thousand, in one answer.",
      scope: "sandbox:read",
      query: listV2Query.pick({ metadata: true }),
      answers: { 200: { description: "All of them", schema: z.array(listedSandboxSchema) } },
    },
    async (call) => {
      const page = await sandboxStore.list(call.caller.scope, {
        states: listV2Query.shape.state.parse("running"),
        metadata: metadataPairs(call.query.metadata),
        limit: MOST_LISTED,
      });
      return { status: 200, body: page.items.map(listedSandbox) };
    },
  );
}

/** Which sandboxes were made from that template or snapshot; undefined for what can be neither. */
async function templateFilter(
  { templates }: RouteDeps,
  scope: TenantScope,
  reference: string,
): Promise<Pick<SandboxFilter, "template" | "references"> | undefined> {
  const built = await templates.find(scope, reference);
  if (built !== undefined) return { references: [built.id, built.name] };
  const snapshot = snapshotIdOf(reference);
  if (snapshot !== undefined) return { references: [snapshot] };
  const template = ownTemplateOf(reference);
  return template === undefined ? undefined : { template };
}
