import type { KeyedCallOptions } from "./call-options.ts";
import { errorFromLine } from "./error-from-response.ts";
import { TorporError } from "./errors.ts";
import { NOT_SENT, requestJson } from "./request-json.ts";
import { IMAGE_TIMEOUT_MS } from "./sandbox-lifecycle.ts";
import type { Transport } from "./transport.ts";
import type { ForkWire, SandboxWire } from "./wire.ts";

/** How to fork. */
export interface ForkOptions extends KeyedCallOptions {
  /** How many; 1 to 100, default 1. */
  count?: number | undefined;
  /** TTL of the children, from now; default: the parent's deadline. */
  ttlSeconds?: number | undefined;
  /** Labels of the children, over the parent's. */
  metadata?: Readonly<Record<string, string>> | undefined;
  /** Secrets of the children, over the parent's. */
  secrets?: Readonly<Record<string, string>> | undefined;
}

/** What came of a fork. */
export interface ForkResult<Sandbox> {
  /** In no particular order; at least one. */
  children: Sandbox[];
  /** One for each that could not be made. */
  failures: TorporError[];
}

export async function forkSandbox<Sandbox>(
  transport: Transport,
  root: string,
  options: ForkOptions,
  make: (wire: SandboxWire) => Sandbox,
): Promise<ForkResult<Sandbox>> {
  const { signal, idempotencyKey, timeoutMs = IMAGE_TIMEOUT_MS } = options;
  const json = requestJson(options, NOT_SENT);
  const path = `${root}/fork`;
  const answer = await transport.json<ForkWire>({
    method: "POST",
    path,
    json,
    signal,
    timeoutMs,
    idempotencyKey,
  });
  const result: ForkResult<Sandbox> = { children: [], failures: [] };
  for (const child of answer.children) {
    if ("sandbox" in child) result.children.push(make(child.sandbox));
    else result.failures.push(errorFromLine(child));
  }
  if (result.children.length > 0) return result;
  throw (
    result.failures[0] ??
    new TorporError("the server answered a fork with no children", { code: "invalid_response" })
  );
}
