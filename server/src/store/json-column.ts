/** JSON column to value: SQLite gives text, PostgreSQL the parsed value. */
export function parseJsonColumn(value: unknown): unknown {
  return typeof value === "string" ? JSON.parse(value) : value;
}
