import type { IncomingMessage } from "node:http";
import { serialId } from "../serial-id.ts";
import { CodeServer, heldExecutePath } from "./code-server.ts";
import type { ExecTarget } from "./exec.ts";
import { EXECUTION_HEADER } from "./unbroken-code.ts";

/**
 * How code that a client of E2B's posts goes on over a snapshot, a fork and a pause: where it is posted to, and what is passed
 * on of the answer; undefined for one that is no stream of the execution. Its client's leaving interrupts it.
 */
export function unbrokenExecute(target: ExecTarget): {
  path: string;
  bodyOf: (answer: IncomingMessage, signal: AbortSignal) => AsyncIterable<Uint8Array> | undefined;
} {
  const id = serialId("c");
  return {
    path: heldExecutePath(id),
    bodyOf: (answer, signal) =>
      answer.headers[EXECUTION_HEADER] === id ? new CodeServer(target).goOn(id, answer, signal) : undefined,
  };
}
