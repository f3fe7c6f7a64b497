import { CodedError } from "./coded-error.ts";
import type { Use } from "./estimate.ts";

const COLUMNS = ["time", "duration", "tenant"] as const;
type Column = (typeof COLUMNS)[number];

/** A file with more bad rows than this is the wrong file. */
const MAX_SHOWN = 5;
/** Unix seconds of the year 5138: what is larger is counted in something else. */
const MAX_UNIX_SECONDS = 1e11;
/** Thirty years: what is longer is a slip. */
const MAX_DURATION_SECONDS = 1_000_000_000;

/**
 * Reads a trace of uses, fed line by line: CSV of `time,duration,tenant`.
 *
 * `time`: Unix seconds, fractions allowed, or RFC 3339. `duration`: seconds. `tenant`: may be left out, then all are one
 * tenant's. The first line may name the columns, in any order. Empty lines and lines that begin with `#` are skipped;
 * rows need no order.
 */
export class TraceReader {
  readonly uses: Use[] = [];
  readonly #source: string;
  readonly #bad: string[] = [];
  #badCount = 0;
  #lines = 0;
  #columns: readonly Column[] | undefined;
  /** One string for each tenant, however many rows name it. */
  readonly #tenants = new Map<string, string>();

  /** @param source what errors call it, such as the file's name */
  constructor(source: string) {
    this.#source = source;
  }

  line(text: string): void {
    this.#lines += 1;
    const row = (this.#lines === 1 ? text.replace(/^\uFEFF/, "") : text).trim();
    if (row === "" || row.startsWith("#")) return;
    const fields = fieldsOf(row);
    if (fields === undefined) return this.#refuse("has a quote that does not end");
    if (this.#columns === undefined) {
      const named = namedColumns(fields);
      this.#columns = named ?? COLUMNS;
      if (named !== undefined) {
        const missing = (["time", "duration"] as const).filter((column) => !named.includes(column));
        if (missing.length > 0) this.#refuse(`names its columns, and not ${missing.join(" and ")}`);
        return;
      }
    }
    this.#row(fields, this.#columns);
  }

  /**
   * All uses, when the last line was fed.
   *
   * @throws CodedError invalid_request naming the lines that cannot be read, or when there is no use at all
   */
  finish(): Use[] {
    if (this.#badCount > 0) {
      const more = this.#badCount > this.#bad.length ? [`and ${this.#badCount - this.#bad.length} more`] : [];
      throw new CodedError(
        "invalid_request",
        `${this.#source} cannot be replayed: ${[...this.#bad, ...more].join("; ")}. A row is time,duration,tenant: Unix seconds or RFC 3339, seconds, and a name`,
        { details: { bad_rows: this.#badCount } },
      );
    }
    if (this.uses.length === 0)
      throw new CodedError(
        "invalid_request",
        `${this.#source} has no uses: a row is time,duration,tenant, such as 2026-01-01T09:00:00Z,120,acme`,
      );
    return this.uses;
  }

  #row(fields: readonly string[], columns: readonly Column[]): void {
    if (fields.length > columns.length)
      return this.#refuse(`has ${fields.length} fields, and there are ${columns.length} columns`);
    const field = (column: Column): string => fields[columns.indexOf(column)]?.trim() ?? "";
    const time = timeOf(field("time"));
    if (typeof time === "string") return this.#refuse(time);
    const duration = Number(field("duration"));
    if (field("duration") === "" || !(duration >= 0 && duration <= MAX_DURATION_SECONDS))
      return this.#refuse(`has the duration ${shown(field("duration"))}, which is no number of seconds`);
    const name = field("tenant");
    const tenant = this.#tenants.get(name) ?? name;
    if (tenant === name) this.#tenants.set(name, name);
    this.uses.push({ at_ms: time, duration_ms: duration * 1_000, tenant });
  }

  #refuse(why: string): void {
    this.#badCount += 1;
    if (this.#bad.length < MAX_SHOWN) this.#bad.push(`line ${this.#lines} ${why}`);
  }
}

/** The columns that a heading names; undefined when the line is none. */
function namedColumns(fields: readonly string[]): Column[] | undefined {
  const names = fields.map((field) => field.trim().toLowerCase());
  if (!names.includes("time") && !names.includes("duration")) return undefined;
  return names as Column[];
}

/** Unix milliseconds, or what is wrong. */
function timeOf(text: string): number | string {
  if (text === "") return "has no time";
  const number = Number(text);
  if (Number.isFinite(number)) {
    if (number < 0 || number > MAX_UNIX_SECONDS)
      return `has the time ${shown(text)}, which is no Unix time in seconds${number > MAX_UNIX_SECONDS ? " (milliseconds?)" : ""}`;
    return number * 1_000;
  }
  const parsed = /^\d{4}-\d{2}-\d{2}([T ]|$)/.test(text) ? Date.parse(text) : Number.NaN;
  return Number.isNaN(parsed)
    ? `has the time ${shown(text)}, which is neither Unix seconds nor RFC 3339`
    : parsed;
}

/** One line of CSV (RFC 4180), without line breaks in fields; undefined when a quote does not end. */
function fieldsOf(row: string): string[] | undefined {
  if (!row.includes('"')) return row.split(",");
  const fields: string[] = [];
  const pattern = /(?:"((?:[^"]|"")*)"|([^",]*))(,|$)/gy;
  for (;;) {
    const match = pattern.exec(row);
    if (match === null) return undefined;
    fields.push(match[1]?.replaceAll('""', '"') ?? match[2] ?? "");
    if (match[3] === "") return fields;
  }
}

const shown = (text: string): string => JSON.stringify(text.slice(0, 40));
