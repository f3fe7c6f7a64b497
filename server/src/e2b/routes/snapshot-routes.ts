import { CodedError } from "@torpor/protocol";
import { z } from "zod";
import { SENT } from "../../http/api.ts";
import type { RouteDeps } from "../../routes/route-deps.ts";
import type { SnapshotRecord } from "../../store/snapshot-store.ts";
import { e2bTemplateNotFound } from "../e2b-error.ts";
import { requireAwake } from "../connect.ts";
import { DEFAULT_TAG, readReference } from "../template/template-name.ts";
import { shownSnapshotId, snapshotIdOf } from "../template-reference.ts";
import { addE2bRoute } from "./add-e2b-route.ts";
import { e2bPageLimit } from "./list-query.ts";

const snapshotSchema = z.object({ snapshotID: z.string(), names: z.array(z.string()) });

/** Take, list and delete snapshots, as E2B's clients do. */
export function addE2bSnapshotRoutes(deps: RouteDeps): void {
  const { sandboxes, snapshots, snapshotStore, templates, clock } = deps;

  addE2bRoute(
    deps,
    {
      method: "post",
      path: "/sandboxes/{id}/snapshots",
      summary: "Take a snapshot of a running sandbox",
      description: "It goes on. Create from the snapshot with its id as `templateID`.",
      scope: "sandbox:write",
      body: z.object({ name: z.string().min(1).max(128).nullish() }),
      answers: { 201: { description: "The snapshot", schema: snapshotSchema } },
    },
    async (call) =>
      await deps.api.once(
        call,
        async () => {
          const { scope } = call.caller;
          const { record } = await sandboxes.requireLiving(scope, call.param("id"));
          requireAwake(record);
          const options = { kind: "user", name: call.body.name ?? null, retentionSeconds: null } as const;
          const { snapshot, sandbox } = await snapshots.take(scope, record.id, options);
          deps.activity.note(sandbox);
          call.note({ snapshotId: snapshot.id, tenant: snapshot.tenant });
          return { status: 201, body: shown(snapshot) };
        },
        false,
      ),
  );

  addE2bRoute(
    deps,
    {
      method: "get",
      path: "/snapshots",
      summary: "List snapshots, newest first",
      description: "`x-next-token` names the next page, if there is one.",
      scope: "sandbox:read",
      query: z.object({
        sandboxID: z.string().max(80).optional(),
        name: z.string().max(128).optional(),
        limit: e2bPageLimit,
        nextToken: z.string().max(512).optional(),
      }),
      answers: { 200: { description: "One page", schema: z.array(snapshotSchema) } },
    },
    async (call) => {
      const { sandboxID: sandboxId, name, limit, nextToken } = call.query;
      const page = await snapshotStore.list(call.caller.scope, {
        limit,
        now: clock.now(),
        ...(sandboxId === undefined ? {} : { sandboxId }),
        ...(name === undefined ? {} : { name }),
        ...(nextToken === undefined ? {} : { cursor: nextToken }),
      });
      return {
        status: 200,
        body: page.items.map(shown),
        headers: page.nextCursor === null ? {} : { "x-next-token": page.nextCursor },
      };
    },
  );

  addE2bRoute(
    deps,
    {
      method: "delete",
      path: "/templates/{template_id}",
      summary: "Delete a snapshot, or a template that was built here with all its builds",
      description: "Sandboxes made from it live on. Again: 404.",
      scope: "sandbox:write",
      answers: { 204: { description: "It is gone" } },
    },
    async (call) => {
      const { scope } = call.caller;
      const reference = call.param("template_id");
      const id = snapshotIdOf(reference);
      const snapshot = id === undefined ? undefined : await snapshotStore.find(scope, id, clock.now());
      const template = snapshot === undefined ? await templates.find(scope, reference) : undefined;
      if (snapshot !== undefined) await snapshots.remove(snapshot, scope.keyId);
      else if (template === undefined) throw e2bTemplateNotFound(reference);
      else {
        requireNoTag(reference);
        await templates.remove(template, scope.keyId);
      }
      call.outgoing.writeHead(204).end();
      return SENT;
    },
  );
}

/** @throws CodedError invalid_request for the name of one build of many */
function requireNoTag(reference: string): void {
  const { tag = DEFAULT_TAG } = readReference(reference) ?? {};
  if (tag !== DEFAULT_TAG)
    throw new CodedError(
      "invalid_request",
      `'${reference.slice(0, 200)}' names a tag, but a template is deleted with all its builds; take the tag away with removeTags (DELETE /templates/tags), or name the template without a tag`,
    );
}

function shown({ id, name }: SnapshotRecord): z.input<typeof snapshotSchema> {
  return { snapshotID: shownSnapshotId(id), names: name === null ? [] : [name] };
}
