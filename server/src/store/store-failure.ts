import { CodedError } from "@torpor/protocol";

/** First two characters of PostgreSQL's codes: connection, resources, operator, system. */
const POSTGRES_OUTAGES = new Set(["08", "53", "57", "58"]);
const CONNECTION_CODES = new Set(["ECONNREFUSED", "ECONNRESET", "ENOENT", "EPIPE", "ETIMEDOUT", "ENOTFOUND"]);
const SQLITE_OUTAGE = /^SQLITE_(BUSY|LOCKED|IOERR|CANTOPEN|READONLY|PROTOCOL)/;

/**
 * What the database's driver threw, if it says that the store cannot do its work now: `no_space` for a full disk,
 * else `store_unavailable`. Undefined for everything else, such as a wrong query, which is a bug of ours.
 */
export function storeFailure(error: unknown): CodedError | undefined {
  if (!(error instanceof Error)) return undefined;
  const code = "code" in error && typeof error.code === "string" ? error.code : "";
  if (code === "SQLITE_FULL" || code === "53100") {
    return new CodedError("no_space", "the disk of the server's store is full; free some space", {
      cause: error,
    });
  }
  const isOutage =
    SQLITE_OUTAGE.test(code) ||
    (code.length === 5 && POSTGRES_OUTAGES.has(code.slice(0, 2))) ||
    (CONNECTION_CODES.has(code) && "syscall" in error) ||
    /^Connection terminated|^timeout exceeded when trying to connect/.test(error.message);
  if (!isOutage) return undefined;
  return new CodedError(
    "store_unavailable",
    "the server's store cannot be reached just now; try again, and see the server's log if it stays so",
    { cause: error },
  );
}
