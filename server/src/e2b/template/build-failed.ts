import { CodedError } from "@torpor/protocol";
import { GuestRefusal } from "../../host/answer-error.ts";

/** A build that cannot go on, with the sentence its owner is told. */
export class BuildFailed extends Error {}

/**
 * What an error says to the owner of a build: the agent's own words where it refused, with its code as E2B's has it. Of a
 * fault of the host's or the server's own, which may name their folders, only that there was one.
 */
export function failureText(error: unknown): string {
  const refusal = error instanceof CodedError && error.cause instanceof GuestRefusal ? error.cause : error;
  if (refusal instanceof GuestRefusal) return `${refusal.guestCode}: ${refusal.message}`;
  if (error instanceof BuildFailed || (error instanceof CodedError && error.code !== "internal"))
    return error.message;
  return "something failed in this server or its host; the server's log says what";
}
