import {
  ledgerCheckpointSchema,
  ledgerLineSchema,
  LIMITS,
  shownLedgerEntrySchema,
  tenantSchema,
} from "@torpor/protocol";
import { z } from "zod";
import { operatorOf } from "../auth/operator-of.ts";
import { SENT } from "../http/api.ts";
import { NdjsonWriter } from "../http/ndjson.ts";
import { pageLimit } from "./shown-page.ts";
import type { RouteDeps } from "./route-deps.ts";

/** Lines of an export read from the store at once. */
const PAGE_LINES = 500;

const listQuery = z.strictObject({
  sandbox_id: z.string().max(80).optional(),
  tenant: tenantSchema.optional(),
  limit: pageLimit,
  cursor: z
    .string()
    .regex(/^[1-9]\d{0,14}$/, "must be next_cursor of the previous page")
    .optional()
    .describe("`next_cursor` of the previous page."),
});

/** Who held what, and proof of it. */
export function addLedgerRoutes(deps: RouteDeps): void {
  const { api, ledgerStore, checkpointKey, clock } = deps;

  api.add(
    {
      method: "get",
      path: "/v1/ledger",
      tag: "ledger",
      summary: "Read what was bound to one's tenants, newest first",
      description:
        "Every binding and release of a sandbox's id, machine, address, snapshot and hibernation image, with who did it, and every request for them that was refused. Entries are kept for good. `hash` and `prev` chain them over all accounts; the operator verifies the whole with `torpor ledger verify`.",
      scope: "sandbox:read",
      query: listQuery,
      answers: {
        200: {
          description: "One page",
          schema: z.object({ items: z.array(shownLedgerEntrySchema), next_cursor: z.string().nullable() }),
        },
      },
    },
    async (call) => {
      const { sandbox_id: sandboxId, tenant, limit = LIMITS.defaultPageSize, cursor } = call.query;
      const found = await ledgerStore.list(call.caller.scope, {
        limit: limit + 1,
        ...(sandboxId === undefined ? {} : { sandboxId }),
        ...(tenant === undefined ? {} : { tenant }),
        ...(cursor === undefined ? {} : { before: Number(cursor) }),
      });
      const items = found.slice(0, limit);
      const last = items.at(-1);
      const nextCursor = found.length > limit && last !== undefined ? String(last.seq) : null;
      return { status: 200, body: { items, next_cursor: nextCursor } };
    },
  );

  api.add(
    {
      method: "get",
      path: "/v1/ledger/export",
      tag: "ledger",
      summary: "Export the whole ledger, of all accounts",
      description:
        "JSON lines: first how far it goes (`ledger`, `seq`, `hash`), then every entry in order. `hash` is the SHA-256 of the text in `entry`, which holds the hash of the entry before as `prev`. `torpor ledger verify --file` reads it without a server.",
      scope: "operator",
      answers: {
        200: {
          description: "The ledger",
          schema: ledgerLineSchema,
          mediaType: "application/x-ndjson",
        },
      },
    },
    async (call) => {
      const operator = operatorOf(call.caller);
      const head = await ledgerStore.head(operator);
      const writer = new NdjsonWriter(call.outgoing, call.signal);
      if (call.incoming.method === "HEAD") {
        writer.end();
        return SENT;
      }
      try {
        await writer.write(head);
        for (let after = 0; after < head.seq;) {
          const lines = await ledgerStore.lines(operator, { after, to: head.seq, limit: PAGE_LINES });
          if (lines.length === 0) break; // its end is missing, which the first line gives away
          for (const line of lines) await writer.write(line);
          after = lines.at(-1)?.seq ?? head.seq;
        }
        for (const line of await ledgerStore.strays(operator)) await writer.write(line);
        writer.end();
      } catch (error) {
        // Once it has begun there is no status left to tell: an export that is cut off does not verify.
        if (!call.outgoing.destroyed) call.note({ err: error });
        call.outgoing.destroy();
      }
      return SENT;
    },
  );

  api.add(
    {
      method: "get",
      path: "/v1/ledger/checkpoint",
      tag: "ledger",
      summary: "Get a signed statement of how far the ledger goes",
      description:
        "Kept elsewhere, it shows later that nothing before it was changed or cut off. Ed25519, over the text that protocol's `checkpointText` gives.",
      scope: "operator",
      answers: { 200: { description: "The checkpoint", schema: ledgerCheckpointSchema } },
    },
    async (call) => {
      const head = await ledgerStore.head(operatorOf(call.caller));
      return { status: 200, body: checkpointKey.sign(head, clock.now()) };
    },
  );
}
