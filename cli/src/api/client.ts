import { Torpor } from "@torpor/sdk";
import type { Invocation } from "../context.ts";
import { findConnection } from "./connection.ts";

/** The client library, connected as the options and the environment say. */
export function clientFor(invocation: Invocation): Torpor {
  return new Torpor(findConnection(invocation));
}
