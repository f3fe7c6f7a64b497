import { type Kysely, sql } from "kysely";
import { usedSince } from "../usage/metered.ts";
import type { HeldInterval } from "../usage/usage-part.ts";
import type { SnapshotTable, Tables, UsageIntervalTable } from "./schema.ts";
import { readMeterColumns } from "./usage-column.ts";
import { isAskedFor, type UsageFilter, type UsageOwner } from "./usage-filter.ts";

/** What is still held: by living sandboxes, until now or where their end was accepted, and by snapshots that are kept. */
export async function openUsage(
  db: Kysely<Tables>,
  owner: UsageOwner,
  filter: UsageFilter,
): Promise<HeldInterval[]> {
  return [...(await ofSandboxes(db, owner, filter)), ...(await ofSnapshots(db, owner, filter))];
}

async function ofSandboxes(
  db: Kysely<Tables>,
  owner: UsageOwner,
  filter: UsageFilter,
): Promise<HeldInterval[]> {
  const { to, now } = filter;
  const rows = await db
    .selectFrom("sandboxes")
    .select(["id", "account", "tenant", "template", "cpu", "memory_mb", "disk_mb"])
    .select(["metered_state", "metered_from", "metered_intervals", "metered_move", "metered_use"])
    .where(sql<boolean>`state <> 'destroyed'`) // written out, so that the index of what lives is used
    .where("metered_state", "<>", "destroyed")
    .where("metered_from", "<", to)
    .where(isAskedFor(owner, filter, "id"))
    .execute();
  return rows.map((row) => {
    const metered = readMeterColumns(row);
    return {
      ...row,
      sandbox_id: row.id,
      state: metered.state,
      image_bytes: metered.imageBytes,
      from_at: metered.from,
      to_at: Math.min(now, metered.until ?? now),
      ...usedSince(metered.base, metered.used),
    };
  });
}

async function ofSnapshots(
  db: Kysely<Tables>,
  owner: UsageOwner,
  filter: UsageFilter,
): Promise<HeldInterval[]> {
  const rows = await db
    .selectFrom("snapshots")
    .select(["id", "account", "tenant", "template", "size_bytes", "created_at"])
    .where("kind", "<>", "fork")
    .where("size_bytes", ">", 0)
    .where("created_at", "<", filter.to)
    .where(isAskedFor(owner, filter, "id"))
    .execute();
  return rows.map((row) => snapshotInterval(row, filter.now));
}

/** What a snapshot that was kept took from its making to its end. */
export function snapshotInterval(
  {
    id,
    account,
    tenant,
    template,
    size_bytes: bytes,
    created_at: from,
  }: Pick<SnapshotTable, "id" | "account" | "tenant" | "template" | "size_bytes" | "created_at">,
  to: number,
): UsageIntervalTable {
  return {
    sandbox_id: id,
    number: 1,
    account,
    tenant,
    template,
    state: "snapshot",
    cpu: 0,
    memory_mb: 0,
    disk_mb: 0,
    image_bytes: bytes,
    from_at: from,
    to_at: to,
    cpu_seconds: 0,
    memory_peak_bytes: 0,
    network_in_bytes: 0,
    network_out_bytes: 0,
    idle_seconds: 0,
    uncertain_ms: 0,
  };
}
