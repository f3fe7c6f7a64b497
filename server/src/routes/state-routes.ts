import { CodedError, inventorySchema, stateSchema } from "@torpor/protocol";
import { z } from "zod";
import { GuestClient } from "../guest/guest-client.ts";
import { readAll } from "../host/read-all.ts";
import { forecastOf } from "../state/forecast.ts";
import type { RouteDeps } from "./route-deps.ts";

/** Samples and lists are bounded by the guest; this bounds the guest, bytes. */
const MAX_STATE_BYTES = 16 * 1024 * 1024;
/** The guest looks at every changed file. */
const TIMEOUT_MS = 60_000;

const stateQuery = z.strictObject({
  wake: z
    .enum(["true", "false"])
    .optional()
    .describe("Whether to wake a sleeping sandbox for it. Default false."),
});

/** What state a sandbox holds. */
export function addStateRoutes(deps: RouteDeps): void {
  deps.api.add(
    {
      method: "get",
      path: "/v1/sandboxes/{id}/state",
      tag: "lifecycle",
      summary: "Take inventory of a sandbox's state",
      description:
        "By the six kinds: files, packages, caches, memory, connections, browser; and for each what would survive a pause, a hibernation, a fork and the end. Counts as no activity. Of a sleeping sandbox it is refused, since only a running one can be asked, unless `wake=true`.",
      scope: "sandbox:read",
      query: stateQuery,
      answers: { 200: { description: "The inventory", schema: stateSchema } },
    },
    async (call) => {
      const { scope } = call.caller;
      const id = call.param("id");
      const { record, host } =
        call.query.wake === "true"
          ? await deps.sandboxes.requireRunning(scope, id)
          : await deps.sandboxes.requireLiving(scope, id);
      if (record.state !== "running") {
        throw new CodedError(
          "wrong_state",
          `sandbox ${id} is ${record.state}, and only a running one can take inventory of itself; ask with ?wake=true to wake it`,
          { details: { state: record.state } },
        );
      }
      const guest = new GuestClient(host.client, record);
      const answer = await guest.http("GET", "/torpor/state", {
        headers: { "x-torpor-passive": "1" },
        headTimeoutMs: TIMEOUT_MS,
        signal: call.signal,
      });
      const taken = inventorySchema.safeParse(
        JSON.parse((await readAll(answer, MAX_STATE_BYTES)).toString("utf8")),
      );
      if (!taken.success) {
        throw new CodedError("guest_unavailable", `the inventory of sandbox ${id} is not readable`, {
          cause: taken.error,
        });
      }
      const body = {
        sandbox_id: record.id,
        generation: record.generation,
        ...taken.data,
        forecast: forecastOf(taken.data, record.hibernateMemory),
      };
      return { status: 200, body };
    },
  );
}
