import { withWorkload } from "./advise.ts";
import { CREATE_TIMEOUT_MS, type SandboxCreateOptions } from "./create-sandbox.ts";
import { NOT_SENT, requestJson } from "./request-json.ts";
import type { Transport } from "./transport.ts";
import type { SessionWire } from "./wire.ts";

/** Whose session, under which name, and what to make when there is none that lives. */
export interface SessionOptions extends Omit<SandboxCreateOptions, "idempotencyKey"> {
  /** Your own name for it, such as a chat's id: 1 to 256 characters. Unique within the tenant. */
  key: string;
}

/** Asking again finds the same sandbox, so an aborted call needs no undoing. */
export async function openSession(transport: Transport, options: SessionOptions): Promise<SessionWire> {
  options.signal?.throwIfAborted();
  const { signal, timeoutMs = CREATE_TIMEOUT_MS } = options;
  const json = requestJson(withWorkload(options), NOT_SENT);
  const path = "/v1/sessions";
  return transport.json<SessionWire>({ method: "POST", path, json, signal, timeoutMs });
}
