import { CodedError } from "@torpor/protocol";
import { type ReadableRows, readableRows } from "./readable-rows.ts";

/** Of ids of ours, and of names of accounts. */
const LISTED_ID = /^[\w.:@-]{1,128}$/;

/** Place in a list that is sorted newest first: the last item shown. */
export interface PageCursor {
  createdAt: number;
  id: string;
}

/** Opaque to callers; stable while items come and go. */
function encodeCursor(cursor: PageCursor): string {
  return Buffer.from(JSON.stringify([cursor.createdAt, cursor.id])).toString("base64url");
}

/** @throws CodedError invalid_request when `text` is not one of ours. */
export function decodeCursor(text: string): PageCursor {
  try {
    const parsed: unknown = JSON.parse(Buffer.from(text, "base64url").toString("utf8"));
    if (
      Array.isArray(parsed) &&
      Number.isSafeInteger(parsed[0]) &&
      typeof parsed[1] === "string" &&
      LISTED_ID.test(parsed[1])
    ) {
      return { createdAt: Number(parsed[0]), id: parsed[1] };
    }
  } catch {
    // not JSON: refused below like every other foreign text
  }
  throw new CodedError(
    "invalid_request",
    "cursor is not one this server gave out; pass next_cursor of the previous page unchanged, or leave it out for the first page",
    {
      details: { issues: [{ path: "cursor", message: "must be next_cursor of the previous page" }] },
    },
  );
}

/** One page of a list. */
export interface RecordPage<T> extends ReadableRows<T> {
  nextCursor: string | null;
}

/** A page of the rows found, of which one more than `limit` was asked for: the one too many says that more follow. */
export function toPage<Row extends { id: string; created_at: number }, T>(
  found: readonly Row[],
  limit: number,
  toRecord: (row: Row) => T,
): RecordPage<T> {
  const rows = found.slice(0, limit);
  const last = rows.at(-1);
  return {
    ...readableRows(rows, toRecord),
    nextCursor:
      found.length > limit && last !== undefined
        ? encodeCursor({ createdAt: last.created_at, id: last.id })
        : null,
  };
}
