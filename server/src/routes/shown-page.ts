import { z } from "zod";
import type { RecordPage } from "../store/page-cursor.ts";
import type { ReadableRows } from "../store/readable-rows.ts";

const UNREADABLE = z
  .array(z.string())
  .optional()
  .describe(
    "Ids of what belongs here and cannot be read; asked for by id, each says why. Left out when there is none.",
  );

/** The answer of a list that comes whole. */
export function listSchema<T extends z.ZodType>(item: T) {
  return z.object({ items: z.array(item), unreadable: UNREADABLE });
}

/** The answer of a list that comes in pages. */
export function pageSchema<T extends z.ZodType>(item: T) {
  return z.object({ items: z.array(item), next_cursor: z.string().nullable(), unreadable: UNREADABLE });
}

/** A list as the API writes it. */
export function shownList<T>(
  { items, unreadable }: ReadableRows<T>,
  shown: (record: T) => unknown = (record) => record,
): object {
  return { items: items.map(shown), ...(unreadable.length === 0 ? {} : { unreadable }) };
}

/** A page as the API writes it. */
export function shownPage<T>(page: RecordPage<T>, shown?: (record: T) => unknown): object {
  return { ...shownList(page, shown), next_cursor: page.nextCursor };
}
