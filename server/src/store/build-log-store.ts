import type { Kysely } from "kysely";
import type { Database } from "./open-database.ts";
import type { Tables } from "./schema.ts";
import type { BuildRecord } from "./template-store.ts";

/** How grave a line of a build's log is, the least first. */
export const BUILD_LOG_LEVELS = ["debug", "info", "warn", "error"] as const;
export type BuildLogLevel = (typeof BUILD_LOG_LEVELS)[number];

/** One line of a build's log. */
export interface BuildLogEntry {
  /** Unix milliseconds. */
  at: number;
  level: BuildLogLevel;
  message: string;
  /** `base`, a number from 1, `finalize`, or null for what is of no step. */
  step: string | null;
}

/** What builds say, line by line. */
export class BuildLogStore {
  readonly #database: Database;
  readonly #db: Kysely<Tables>;

  constructor(database: Database) {
    this.#database = database;
    this.#db = database.db;
  }

  /** Adds lines, the first with the number `seq`. */
  async append(build: BuildRecord, seq: number, entries: readonly BuildLogEntry[]): Promise<void> {
    if (entries.length === 0) return;
    const rows = entries.map((entry, index) => ({ build_id: build.id, seq: seq + index, ...entry }));
    await this.#database.relaxed((db) => db.insertInto("template_build_logs").values(rows).execute());
  }

  /** Lines from number `from` on, of at least that level, at most `limit`. */
  async read(
    build: BuildRecord,
    { from, limit, level }: { from: number; limit: number; level: BuildLogLevel },
  ): Promise<BuildLogEntry[]> {
    const levels = BUILD_LOG_LEVELS.slice(BUILD_LOG_LEVELS.indexOf(level));
    const rows = await this.#db
      .selectFrom("template_build_logs")
      .select(["at", "level", "message", "step"])
      .where("build_id", "=", build.id)
      .where("level", "in", levels)
      .orderBy("seq")
      .offset(from)
      .limit(limit)
      .execute();
    return rows.map((row) => ({ ...row, level: row.level as BuildLogLevel }));
  }
}
