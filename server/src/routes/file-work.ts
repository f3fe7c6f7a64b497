import { CodedError, type ErrorCode } from "@torpor/protocol";
import { GuestRefusal } from "../host/answer-error.ts";
import { GuestClient } from "../guest/guest-client.ts";
import { unknownDefaultUser } from "../guest/unknown-user.ts";
import type { Call } from "../http/api.ts";
import type { SandboxRecord } from "../store/sandbox-record.ts";
import type { RouteDeps } from "./route-deps.ts";

/** The guest of the sandbox a request is about, which must run; counts as activity. */
export async function guestFor(
  deps: RouteDeps,
  call: Call<unknown, unknown>,
): Promise<{ guest: GuestClient; record: SandboxRecord }> {
  const { record, host } = await deps.sandboxes.requireRunning(call.caller.scope, call.param("id"));
  deps.activity.note(record);
  return { guest: new GuestClient(host.client, record), record };
}

/**
 * Runs one file operation; the guest's refusals get the words and codes of files. `asked` is the user whom the caller named.
 */
export async function fileWork<T>(tried: string, work: Promise<T>, asked?: string): Promise<T> {
  try {
    return await work;
  } catch (error) {
    if (!(error instanceof GuestRefusal)) throw error;
    const why = unknownDefaultUser(error.message, asked) ?? error.message;
    throw new CodedError(codeOf(error), `could not ${tried}: ${why}`, { cause: error });
  }
}

function codeOf(error: GuestRefusal): ErrorCode {
  if (error.code === "invalid_request" && error.guestCode === "invalid_argument") return "invalid_path";
  // What the system in the sandbox refuses for reasons of its own, such as EIO for /proc/1/mem: the path's fault.
  return error.code === "internal" ? "unsupported" : error.code;
}
