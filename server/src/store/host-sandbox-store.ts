import type { Kysely } from "kysely";
import { type MachineUse, SANDBOX_STATES } from "@torpor/protocol";
import type { HostScope } from "../auth/tenant-scope.ts";
import type { Database } from "./open-database.ts";
import { type SandboxRecord, toSandboxRecord } from "./sandbox-record.ts";
import type { Tables } from "./schema.ts";
import { meterColumns } from "./usage-column.ts";

/** The sandboxes' records as the watch on a host needs them, which compares them with the host's machines. */
export class HostSandboxStore {
  readonly #db: Kysely<Tables>;

  constructor({ db }: Pick<Database, "db">) {
    this.#db = db;
  }

  /** The sandbox of that id, if it is placed on that host. */
  async find(scope: HostScope, id: string): Promise<SandboxRecord | undefined> {
    const row = await this.#db
      .selectFrom("sandboxes")
      .selectAll()
      .where("id", "=", id)
      .where("host", "=", scope.hostId)
      .executeTakeFirst();
    return row === undefined ? undefined : toSandboxRecord(row);
  }

  /** Every sandbox of that host that has not been destroyed, and those of them whose record cannot be read. */
  async live(
    scope: HostScope,
  ): Promise<{ records: SandboxRecord[]; unreadable: { id: string; error: unknown }[] }> {
    const live = SANDBOX_STATES.filter((state) => state !== "destroyed");
    const rows = await this.#db
      .selectFrom("sandboxes")
      .selectAll()
      .where("host", "=", scope.hostId)
      .where("state", "in", live)
      .execute();
    const records: SandboxRecord[] = [];
    const unreadable: { id: string; error: unknown }[] = [];
    for (const row of rows) {
      try {
        records.push(toSandboxRecord(row));
      } catch (error) {
        unreadable.push({ id: row.id, error });
      }
    }
    return { records, unreadable };
  }

  /**
   * Records what its host tells of sandboxes that go on as they were: until then they are counted, should nobody ever hear
   * of their end.
   */
  async noteSeen(
    _scope: HostScope,
    seen: readonly { record: SandboxRecord; used: MachineUse }[],
    at: number,
  ): Promise<void> {
    if (seen.length === 0) return;
    await this.#db.transaction().execute(async (transaction) => {
      for (const { record, used } of seen) {
        const { metered_use } = meterColumns({ ...record.metered, used, seenAt: at });
        await transaction
          .updateTable("sandboxes")
          .set({ metered_use })
          .where("id", "=", record.id)
          .where("state", "=", record.state)
          .where("generation", "=", record.generation)
          .where("metered_intervals", "=", record.metered.intervals)
          .where("metered_move", "=", record.metered.move)
          .execute();
      }
    });
  }

  /** Whether there is any record, of whatever state, of a sandbox on that host. */
  async knows(scope: HostScope): Promise<boolean> {
    const row = await this.#db
      .selectFrom("sandboxes")
      .select("id")
      .where("host", "=", scope.hostId)
      .limit(1)
      .executeTakeFirst();
    return row !== undefined;
  }

  /** Whether somebody who comes back can learn of this sandbox: by the idempotency key of its create, or by its session. */
  async isAwaited(record: SandboxRecord): Promise<boolean> {
    const keyed = await this.#db
      .selectFrom("idempotency")
      .select("key")
      .where("account", "=", record.account)
      .where("progress", "=", record.id)
      .executeTakeFirst();
    if (keyed !== undefined) return true;
    const session = await this.#db
      .selectFrom("sessions")
      .select("key")
      .where("account", "=", record.account)
      .where("sandbox_id", "=", record.id)
      .executeTakeFirst();
    return session !== undefined;
  }
}
