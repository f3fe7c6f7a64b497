import { CodedError } from "@torpor/protocol";
import type { z } from "zod";
import type { Answer, Call } from "../../http/api.ts";
import type { EndpointDefinition } from "../../http/endpoint.ts";
import type { RouteDeps } from "../../routes/route-deps.ts";
import { e2bSandboxNotFound, showE2bError } from "../e2b-error.ts";

type E2bDefinition<Query extends z.ZodType, Body extends z.ZodType> = Omit<
  EndpointDefinition<Query, Body>,
  "tag" | "showError"
>;

/** Adds a route of E2B's API: errors are E2B's, and what has ended is not found. */
export function addE2bRoute<Query extends z.ZodType = z.ZodNever, Body extends z.ZodType = z.ZodNever>(
  { api }: Pick<RouteDeps, "api">,
  definition: E2bDefinition<Query, Body>,
  run: (call: Call<z.output<Query>, z.output<Body>>) => Promise<Answer>,
): void {
  api.add({ ...definition, tag: "e2b", showError: showE2bError }, async (call) => {
    try {
      return await run(call);
    } catch (error) {
      const isGone =
        error instanceof CodedError && (error.code === "sandbox_not_found" || error.code === "sandbox_ended");
      throw isGone ? e2bSandboxNotFound(call.param("id"), error) : error;
    }
  });
}
