import { sql } from "kysely";
import type { SandboxState } from "@torpor/protocol";
import type { TenantScope } from "../auth/tenant-scope.ts";
import type { Database } from "./open-database.ts";
import { decodeCursor, type RecordPage, toPage } from "./page-cursor.ts";
import { type SandboxRecord, toSandboxRecord } from "./sandbox-record.ts";

type Readable = Pick<Database, "db" | "kind">;

/** Which sandboxes a list is of. */
export interface SandboxMatch {
  /** Empty: every state. */
  states: readonly SandboxState[];
  tenant?: string;
  template?: string;
  /** Made through E2B's API from one that it called so, with any tag. */
  references?: readonly string[];
  metadata: Record<string, string>;
  /** Unix milliseconds: made then or later. */
  createdFrom?: number;
}

export interface SandboxFilter extends SandboxMatch {
  limit: number;
  cursor?: string;
  /** Oldest first. Default newest first. */
  isAscending?: boolean;
}

/** One page of the caller's sandboxes. @throws CodedError invalid_request for a cursor that is not ours. */
export async function listSandboxes(
  database: Readable,
  scope: TenantScope,
  filter: SandboxFilter,
): Promise<RecordPage<SandboxRecord>> {
  let query = matching(database, scope, filter).selectAll();
  const [after, direction] = filter.isAscending === true ? ([">", "asc"] as const) : (["<", "desc"] as const);
  if (filter.cursor !== undefined) {
    const { createdAt, id } = decodeCursor(filter.cursor);
    query = query.where((where) =>
      where.or([
        where("created_at", after, createdAt),
        where.and([where("created_at", "=", createdAt), where("id", after, id)]),
      ]),
    );
  }
  const rows = await query
    .orderBy("created_at", direction)
    .orderBy("id", direction)
    .limit(filter.limit + 1)
    .execute();
  return toPage(rows, filter.limit, toSandboxRecord);
}

/** How many the list has, on all its pages. */
export async function countSandboxes(
  database: Readable,
  scope: TenantScope,
  filter: SandboxMatch,
): Promise<number> {
  const row = await matching(database, scope, filter)
    .select((query) => query.fn.countAll<number | string>().as("count"))
    .executeTakeFirstOrThrow();
  return Number(row.count);
}

function matching({ db, kind }: Readable, scope: TenantScope, filter: SandboxMatch) {
  let query = db.selectFrom("sandboxes").where("account", "=", scope.account);
  if (scope.tenant !== null) query = query.where("tenant", "=", scope.tenant);
  if (filter.tenant !== undefined) query = query.where("tenant", "=", filter.tenant);
  if (filter.template !== undefined) query = query.where("template", "=", filter.template);
  if (filter.references !== undefined) {
    const made =
      kind === "postgres"
        ? sql<string>`lower(e2b ->> 'template')`
        : sql<string>`lower(json_extract(e2b, '$.template'))`;
    const names = filter.references.map((reference) => reference.toLowerCase());
    query = query.where((where) =>
      where.or(
        names.flatMap((name) => [
          sql<boolean>`${made} = ${name}`,
          sql<boolean>`substr(${made}, 1, ${sql.lit(name.length + 1)}) = ${`${name}:`}`,
        ]),
      ),
    );
  }
  if (filter.states.length > 0) query = query.where("state", "in", [...filter.states]);
  for (const [key, value] of Object.entries(filter.metadata)) {
    query = query.where(
      kind === "postgres"
        ? sql<boolean>`metadata ->> ${key}::text = ${value}`
        : sql<boolean>`exists (select 1 from json_each(sandboxes.metadata) as pair where pair.key = ${key} and pair.value = ${value})`,
    );
  }
  if (filter.createdFrom !== undefined) query = query.where("created_at", ">=", filter.createdFrom);
  return query;
}
