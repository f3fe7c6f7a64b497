/** What a list holds: what could be read, and the ids of what is there and could not. */
export interface ReadableRows<T> {
  items: T[];
  unreadable: string[];
}

/** Rows to records. One that cannot be read hides no other, and is not left out without a word. */
export function readableRows<Row extends { id: string }, T>(
  rows: readonly Row[],
  toRecord: (row: Row) => T,
): ReadableRows<T> {
  const items: T[] = [];
  const unreadable: string[] = [];
  for (const row of rows) {
    try {
      items.push(toRecord(row));
    } catch {
      unreadable.push(row.id); // asked for by its id, it says why
    }
  }
  return { items, unreadable };
}
