import { type Kysely, type Selectable, sql, type Transaction } from "kysely";
import { randomText, type SnapshotDefaults } from "@torpor/protocol";
import type { ServerScope, TenantScope } from "../auth/tenant-scope.ts";
import type { Database } from "./open-database.ts";
import { parseJsonColumn } from "./json-column.ts";
import type { BuiltTemplateTable, Tables, TemplateBuildTable } from "./schema.ts";

/** Of a build: no tag stands for it. */
const HAS_NO_TAG = sql<boolean>`not exists (
  select 1 from template_tags where template_tags.build_id = template_builds.id)`;

declare const fromStore: unique symbol;

/** A template that was built here, as the store gave it out: holding it is the right to it. Times are Unix milliseconds. */
export interface BuiltTemplate {
  readonly [fromStore]: true;
  readonly id: string;
  readonly account: string;
  readonly tenant: string;
  readonly name: string;
  readonly createdAt: number;
  readonly updatedAt: number;
}

/** Why a build failed, and in which step: `base`, a number from 1, or `finalize`. */
export interface BuildFailure {
  message: string;
  step: string;
}

/** One build of a template, as the store gave it out: holding it is the right to it. */
export interface BuildRecord {
  readonly [fromStore]: true;
  readonly id: string;
  readonly templateId: string;
  readonly account: string;
  readonly tenant: string;
  readonly status: TemplateBuildTable["status"];
  readonly tags: readonly string[];
  readonly cpu: number | null;
  readonly memoryMb: number | null;
  readonly minFreeDiskMb: number | null;
  readonly snapshotId: string | null;
  readonly defaults: SnapshotDefaults | null;
  readonly failure: BuildFailure | null;
  readonly createdAt: number;
  readonly finishedAt: number | null;
}

export interface BuildRequest {
  name: string;
  tags: readonly string[];
  cpu: number | null;
  memoryMb: number | null;
  minFreeDiskMb: number | null;
}

export interface TemplateTag {
  tag: string;
  buildId: string;
  createdAt: number;
}

/** Templates built through E2B's API, their builds and tags. The images are snapshots of the host's. */
export class TemplateStore {
  readonly #db: Kysely<Tables>;

  constructor(database: Database) {
    this.#db = database.db;
  }

  /** Commits a build that waits to be started, and the template of that name if it is the first. */
  async request(
    scope: TenantScope,
    request: BuildRequest,
    now: number,
  ): Promise<{ template: BuiltTemplate; build: BuildRecord }> {
    const tenant = tenantOf(scope);
    return await this.#db.transaction().execute(async (transaction) => {
      await transaction
        .insertInto("built_templates")
        .values({
          id: `tpl${randomText(17)}`,
          account: scope.account,
          tenant,
          name: request.name,
          created_at: now,
          updated_at: now,
        })
        .onConflict((conflict) => conflict.doNothing())
        .execute();
      const template = await transaction
        .selectFrom("built_templates")
        .selectAll()
        .where("account", "=", scope.account)
        .where("tenant", "=", tenant)
        .where("name", "=", request.name)
        .executeTakeFirstOrThrow();
      const row = await transaction
        .insertInto("template_builds")
        .values({
          id: `bld${randomText(21)}`,
          template_id: template.id,
          account: template.account,
          tenant: template.tenant,
          status: "waiting",
          tags: JSON.stringify(request.tags),
          cpu: request.cpu,
          memory_mb: request.memoryMb,
          min_free_disk_mb: request.minFreeDiskMb,
          snapshot_id: null,
          defaults: null,
          reason: null,
          heartbeat_at: now,
          created_at: now,
          finished_at: null,
        })
        .returningAll()
        .executeTakeFirstOrThrow();
      return { template: toTemplate(template), build: toBuild(row) };
    });
  }

  /** The caller's template of that id, or of that name in its own tenant; undefined for none and, just the same, for another's. */
  async find(scope: TenantScope, idOrName: string): Promise<BuiltTemplate | undefined> {
    const rows = await this.#visible(scope)
      .where((where) =>
        where.or([
          where("id", "=", idOrName),
          where.and([where("name", "=", idOrName), where("tenant", "=", tenantOf(scope))]),
        ]),
      )
      .execute();
    const row = rows.find(({ id }) => id === idOrName) ?? rows[0];
    return row === undefined ? undefined : toTemplate(row);
  }

  /** The caller's templates, the newest first, at most `limit`. */
  async list(scope: TenantScope, limit: number): Promise<BuiltTemplate[]> {
    const rows = await this.#visible(scope)
      .orderBy("created_at", "desc")
      .orderBy("id")
      .limit(limit)
      .execute();
    return rows.map(toTemplate);
  }

  #visible(scope: TenantScope) {
    const query = this.#db.selectFrom("built_templates").selectAll().where("account", "=", scope.account);
    return scope.tenant === null ? query : query.where("tenant", "=", scope.tenant);
  }

  /** A build of that template. */
  async findBuild(template: BuiltTemplate, buildId: string): Promise<BuildRecord | undefined> {
    const row = await this.#buildsOf(template).where("id", "=", buildId).executeTakeFirst();
    return row === undefined ? undefined : toBuild(row);
  }

  /** Its builds, the newest first. */
  async builds(template: BuiltTemplate): Promise<BuildRecord[]> {
    const rows = await this.#buildsOf(template).orderBy("created_at", "desc").orderBy("id").execute();
    return rows.map(toBuild);
  }

  /** The build that a tag stands for. */
  async tagged(template: BuiltTemplate, tag: string): Promise<BuildRecord | undefined> {
    const row = await this.#db
      .selectFrom("template_tags")
      .innerJoin("template_builds", "template_builds.id", "template_tags.build_id")
      .selectAll("template_builds")
      .where("template_tags.template_id", "=", template.id)
      .where("tag", "=", tag)
      .executeTakeFirst();
    return row === undefined ? undefined : toBuild(row);
  }

  /** Its tags, by name. */
  async tags(template: BuiltTemplate): Promise<TemplateTag[]> {
    const rows = await this.#db
      .selectFrom("template_tags")
      .selectAll()
      .where("template_id", "=", template.id)
      .orderBy("tag")
      .execute();
    return rows.map((row) => ({ tag: row.tag, buildId: row.build_id, createdAt: row.created_at }));
  }

  /** Has tags stand for a build that is ready, whatever they stood for before. */
  async assign(build: BuildRecord, tags: readonly string[], now: number): Promise<void> {
    await this.#db.transaction().execute((transaction) => assignTags(transaction, build, tags, now));
  }

  /** Takes tags away. */
  async unassign(template: BuiltTemplate, tags: readonly string[]): Promise<void> {
    await this.#db
      .deleteFrom("template_tags")
      .where("template_id", "=", template.id)
      .where("tag", "in", tags)
      .execute();
  }

  /** Moves a waiting build on. @returns undefined when it has been started before. */
  async begin(build: BuildRecord, now: number): Promise<BuildRecord | undefined> {
    const row = await this.#db
      .updateTable("template_builds")
      .set({ status: "building", heartbeat_at: now })
      .where("id", "=", build.id)
      .where("status", "=", "waiting")
      .returningAll()
      .executeTakeFirst();
    return row === undefined ? undefined : toBuild(row);
  }

  /** Says that it is still worked on. @returns false when it has been given up or removed meanwhile. */
  async heartbeat(build: BuildRecord, now: number): Promise<boolean> {
    const { numUpdatedRows } = await this.#db
      .updateTable("template_builds")
      .set({ heartbeat_at: now })
      .where("id", "=", build.id)
      .where("status", "=", "building")
      .executeTakeFirst();
    return Number(numUpdatedRows) === 1;
  }

  /** Records that it is ready and gives it its tags. @returns false when it has been given up or removed meanwhile. */
  async finish(
    build: BuildRecord,
    made: { snapshotId: string; defaults: SnapshotDefaults },
    now: number,
  ): Promise<boolean> {
    return await this.#db.transaction().execute(async (transaction) => {
      const { numUpdatedRows } = await transaction
        .updateTable("template_builds")
        .set({
          status: "ready",
          snapshot_id: made.snapshotId,
          defaults: JSON.stringify(made.defaults),
          finished_at: now,
        })
        .where("id", "=", build.id)
        .where("status", "=", "building")
        .executeTakeFirst();
      if (Number(numUpdatedRows) !== 1) return false;
      await assignTags(transaction, build, build.tags, now);
      return true;
    });
  }

  /** Records that it failed, unless it is over already. */
  async fail(build: BuildRecord, failure: BuildFailure, now: number): Promise<void> {
    await this.#db
      .updateTable("template_builds")
      .set({ status: "error", reason: JSON.stringify(storable(failure)), finished_at: now })
      .where("id", "=", build.id)
      .where("status", "in", ["waiting", "building"])
      .execute();
  }

  /** How many builds in those states the tenant has that the caller makes builds for, or whose that build is. */
  async countIn(of: TenantScope | BuildRecord, states: readonly BuildRecord["status"][]): Promise<number> {
    const { count } = await this.#db
      .selectFrom("template_builds")
      .select((select) => select.fn.countAll().as("count"))
      .where("account", "=", of.account)
      .where("tenant", "=", of.tenant ?? of.account)
      .where("status", "in", states)
      .executeTakeFirstOrThrow();
    return Number(count);
  }

  /** Builds that no server has worked on since `before`; those never started since `waitingBefore`. */
  async abandoned(_scope: ServerScope, before: number, waitingBefore: number): Promise<BuildRecord[]> {
    const rows = await this.#db
      .selectFrom("template_builds")
      .selectAll()
      .where((where) =>
        where.or([
          where.and([where("status", "=", "building"), where("heartbeat_at", "<", before)]),
          where.and([where("status", "=", "waiting"), where("heartbeat_at", "<", waitingBefore)]),
        ]),
      )
      .execute();
    return rows.map(toBuild);
  }

  /** Builds that ended before `before` and that no tag stands for, at most `limit`. */
  async untagged(_scope: ServerScope, before: number, limit: number): Promise<BuildRecord[]> {
    const rows = await this.#db
      .selectFrom("template_builds")
      .selectAll()
      .where("status", "in", ["ready", "error"])
      .where("finished_at", "<", before)
      .where(HAS_NO_TAG)
      .limit(limit)
      .execute();
    return rows.map(toBuild);
  }

  /** Builds of a template that are ready and have an image, and no tag. */
  async unreachable(of: BuiltTemplate | BuildRecord): Promise<BuildRecord[]> {
    const rows = await this.#db
      .selectFrom("template_builds")
      .selectAll()
      .where("template_id", "=", "templateId" in of ? of.templateId : of.id)
      .where("status", "=", "ready")
      .where("snapshot_id", "is not", null)
      .where(HAS_NO_TAG)
      .execute();
    return rows.map(toBuild);
  }

  /** Records that the image of a build is no more. */
  async forgetSnapshot(build: BuildRecord): Promise<void> {
    await this.#db
      .updateTable("template_builds")
      .set({ snapshot_id: null })
      .where("id", "=", build.id)
      .execute();
  }

  /** Forgets a build, its tags and its log. */
  async removeBuild(build: BuildRecord): Promise<void> {
    await this.#db.transaction().execute(async (transaction) => {
      await transaction.deleteFrom("template_build_logs").where("build_id", "=", build.id).execute();
      await transaction.deleteFrom("template_tags").where("build_id", "=", build.id).execute();
      await transaction.deleteFrom("template_builds").where("id", "=", build.id).execute();
    });
  }

  /** Forgets a template without builds. */
  async remove(template: BuiltTemplate): Promise<void> {
    await this.#db.deleteFrom("built_templates").where("id", "=", template.id).execute();
  }

  #buildsOf(template: BuiltTemplate) {
    return this.#db.selectFrom("template_builds").selectAll().where("template_id", "=", template.id);
  }
}

/** A command's own words may hold what PostgreSQL takes in no JSON: NUL, and halves of characters. */
function storable({ message, step }: BuildFailure): BuildFailure {
  return { message: Buffer.from(message.replaceAll("\0", "")).toString(), step };
}

/** Whose what a scope makes is: the tenant its key is bound to, else the account's own. */
export function tenantOf(scope: TenantScope): string {
  return scope.tenant ?? scope.account;
}

async function assignTags(
  transaction: Transaction<Tables>,
  build: BuildRecord,
  tags: readonly string[],
  now: number,
): Promise<void> {
  for (const tag of tags)
    await transaction
      .insertInto("template_tags")
      .values({ template_id: build.templateId, tag, build_id: build.id, created_at: now })
      .onConflict((conflict) =>
        conflict.columns(["template_id", "tag"]).doUpdateSet({ build_id: build.id, created_at: now }),
      )
      .execute();
  await transaction
    .updateTable("built_templates")
    .set({ updated_at: now })
    .where("id", "=", build.templateId)
    .execute();
}

function toTemplate(row: Selectable<BuiltTemplateTable>): BuiltTemplate {
  const template: Omit<BuiltTemplate, typeof fromStore> = {
    id: row.id,
    account: row.account,
    tenant: row.tenant,
    name: row.name,
    createdAt: row.created_at,
    updatedAt: row.updated_at,
  };
  return template as BuiltTemplate;
}

function toBuild(row: Selectable<TemplateBuildTable>): BuildRecord {
  const build: Omit<BuildRecord, typeof fromStore> = {
    id: row.id,
    templateId: row.template_id,
    account: row.account,
    tenant: row.tenant,
    status: row.status,
    tags: parseJsonColumn(row.tags) as string[],
    cpu: row.cpu,
    memoryMb: row.memory_mb,
    minFreeDiskMb: row.min_free_disk_mb,
    snapshotId: row.snapshot_id,
    defaults: row.defaults === null ? null : (parseJsonColumn(row.defaults) as SnapshotDefaults),
    failure: row.reason === null ? null : (parseJsonColumn(row.reason) as BuildFailure),
    createdAt: row.created_at,
    finishedAt: row.finished_at,
  };
  return build as BuildRecord;
}
