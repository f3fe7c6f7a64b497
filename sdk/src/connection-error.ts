import type { ResolvedConnection } from "./connection-options.ts";
import { ConnectionError } from "./errors.ts";

/** What a runtime's `fetch` or body reader threw, as a ConnectionError that says what to look at. */
export function connectionError(
  error: unknown,
  request: { method: string; path: string },
  connection: Pick<ResolvedConnection, "url" | "isLoopback">,
): ConnectionError {
  const { code, why } = describeCause(error);
  const isRefused = code === "ECONNREFUSED" || code === "ConnectionRefused";
  const hint = isRefused
    ? connection.isLoopback
      ? "nothing listens there; start it with `torpor up`, or set TORPOR_URL"
      : "nothing listens there; check TORPOR_URL or the url option"
    : "check the network and the server's log";
  return new ConnectionError(
    `${request.method} ${request.path} at ${connection.url} failed (${why}): ${hint}`,
    {
      code: "connection_failed",
      retryable: true,
      // Nobody has seen the request, and who restarts a server takes a few seconds: it is worth trying for longer.
      details: isRefused ? { refused: true } : {},
      cause: error,
    },
  );
}

/** The reason below what a runtime threw: Node hides it in `cause`, and in `errors` when a name has several addresses. */
export function describeCause(error: unknown): { code: string | undefined; why: string } {
  let code: string | undefined;
  let message = String(error);
  let current = error;
  for (let depth = 0; depth < 5 && current instanceof Error; depth++) {
    if ("code" in current && typeof current.code === "string") code = current.code;
    if (current.message !== "") ({ message } = current);
    current = current instanceof AggregateError ? (current.errors[0] ?? current.cause) : current.cause;
  }
  return { code, why: code === undefined || message.includes(code) ? message : `${code}: ${message}` };
}
