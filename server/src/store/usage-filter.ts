import { type Expression, sql, type SqlBool } from "kysely";

export interface UsageFilter {
  /** Unix milliseconds; what lies partly within is counted in part. */
  from: number;
  to: number;
  /** Where open intervals end. */
  now: number;
  tenant?: string | undefined;
  template?: string | undefined;
  sandboxId?: string | undefined;
}

/** Whose: a caller's, or, in the server's own work, an account's or one of its tenants'. */
export interface UsageOwner {
  /** Null for all. */
  account: string | null;
  /** Null for all of the account's. */
  tenant: string | null;
}

/**
 * The condition that a row is the owner's and of what is asked for.
 *
 * @param idColumn names what it is of: a sandbox, or a snapshot, which is metered under its own id
 */
export function isAskedFor(
  owner: UsageOwner,
  { tenant, template, sandboxId }: UsageFilter,
  idColumn: "id" | "sandbox_id",
): Expression<SqlBool> {
  const wanted: [column: string, value: string | null | undefined][] = [
    ["account", owner.account],
    ["tenant", owner.tenant],
    ["tenant", tenant],
    ["template", template],
    [idColumn, sandboxId],
  ];
  const conditions = wanted
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([column, value]) => sql`${sql.ref(column)} = ${value}`);
  return sql<SqlBool>`(${sql.join([sql`1 = 1`, ...conditions], sql` and `)})`;
}
