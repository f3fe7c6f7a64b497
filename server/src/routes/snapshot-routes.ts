import { LIMITS, snapshotSchema, takeSnapshotSchema, tenantSchema } from "@torpor/protocol";
import { z } from "zod";
import { snapshotNotFound } from "../sandbox/create-plan.ts";
import { toSnapshot } from "../store/snapshot-store.ts";
import { pageCursor, pageLimit, pageSchema, shownPage } from "./shown-page.ts";
import type { RouteDeps } from "./route-deps.ts";

const listQuery = z.strictObject({
  sandbox_id: z.string().max(80).optional(),
  name: z.string().max(128).optional(),
  tenant: tenantSchema.optional(),
  limit: pageLimit,
  cursor: pageCursor,
});

/** Take, list, get and delete snapshots. */
export function addSnapshotRoutes(deps: RouteDeps): void {
  const { api, snapshots, snapshotStore, clock } = deps;

  api.add(
    {
      method: "post",
      path: "/v1/sandboxes/{id}/snapshots",
      tag: "snapshots",
      summary: "Take a snapshot of a sandbox",
      description:
        "Memory and files of this instant; the sandbox is woken if it sleeps, stands still meanwhile and goes on, and with it the commands whose callers wait. Create from it with `from_snapshot`, in its own tenant only.",
      scope: "sandbox:write",
      body: takeSnapshotSchema,
      answers: { 201: { description: "The snapshot", schema: snapshotSchema } },
    },
    async (call) => {
      const { scope } = call.caller;
      const { name, retention_seconds: retentionSeconds } = call.body;
      return await api.once(
        call,
        async () => {
          const options = { kind: "user", name: name ?? null, retentionSeconds } as const;
          const { snapshot, sandbox } = await snapshots.take(scope, call.param("id"), options);
          deps.activity.note(sandbox);
          call.note({ snapshotId: snapshot.id, tenant: snapshot.tenant });
          return { status: 201, body: toSnapshot(snapshot) };
        },
        false,
      );
    },
  );

  api.add(
    {
      method: "get",
      path: "/v1/snapshots",
      tag: "snapshots",
      summary: "List snapshots, newest first",
      scope: "sandbox:read",
      query: listQuery,
      answers: {
        200: {
          description: "One page",
          schema: pageSchema(snapshotSchema),
        },
      },
    },
    async (call) => {
      const { sandbox_id: sandboxId, name, tenant, limit = LIMITS.defaultPageSize, cursor } = call.query;
      const page = await snapshotStore.list(call.caller.scope, {
        limit,
        now: clock.now(),
        ...(sandboxId === undefined ? {} : { sandboxId }),
        ...(name === undefined ? {} : { name }),
        ...(tenant === undefined ? {} : { tenant }),
        ...(cursor === undefined ? {} : { cursor }),
      });
      return { status: 200, body: shownPage(page, toSnapshot) };
    },
  );

  api.add(
    {
      method: "get",
      path: "/v1/snapshots/{snapshot_id}",
      tag: "snapshots",
      summary: "Get a snapshot",
      scope: "sandbox:read",
      answers: { 200: { description: "The snapshot", schema: snapshotSchema } },
    },
    async (call) => {
      const id = call.param("snapshot_id");
      const snapshot = await snapshotStore.find(call.caller.scope, id, clock.now());
      if (snapshot === undefined) throw snapshotNotFound(id);
      return { status: 200, body: toSnapshot(snapshot) };
    },
  );

  api.add(
    {
      method: "delete",
      path: "/v1/snapshots/{snapshot_id}",
      tag: "snapshots",
      summary: "Delete a snapshot",
      description: "Sandboxes made from it live on. Again: 404.",
      scope: "sandbox:write",
      answers: { 200: { description: "It is gone", schema: z.object({ deleted: z.literal(true) }) } },
    },
    async (call) => {
      const id = call.param("snapshot_id");
      const snapshot = await snapshotStore.find(call.caller.scope, id, clock.now());
      if (snapshot === undefined) throw snapshotNotFound(id);
      await snapshots.remove(snapshot, call.caller.scope.keyId);
      return { status: 200, body: { deleted: true } };
    },
  );
}
