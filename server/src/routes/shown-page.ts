import { LIMITS } from "@torpor/protocol";
import { z } from "zod";
import type { RecordPage } from "../store/page-cursor.ts";
import type { ReadableRows } from "../store/readable-rows.ts";

/** Query of a list: how many a page has. */
export const pageLimit = z.coerce
  .number({ error: "must be a whole number" })
  .int("must be a whole number")
  .min(1)
  .max(LIMITS.maxPageSize)
  .optional()
  .describe(`Items on a page, 1 to ${LIMITS.maxPageSize}. Default ${LIMITS.defaultPageSize}.`);

/** Query of a list: where a page begins. */
export const pageCursor = z.string().max(512).optional().describe("`next_cursor` of the previous page.");

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
