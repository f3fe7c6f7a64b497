import { forkSchema, forkedSchema } from "@torpor/protocol";
import { fork } from "../sandbox/fork.ts";
import type { RouteDeps } from "./route-deps.ts";
import { shownSandbox } from "./shown-sandbox.ts";

/** Copy sandboxes. */
export function addForkRoutes(deps: RouteDeps): void {
  deps.api.add(
    {
      method: "post",
      path: "/v1/sandboxes/{id}/fork",
      tag: "lifecycle",
      summary: "Copy a sandbox",
      description:
        "Makes `count` sandboxes with the memory and files of this one, which goes on after a short pause, and with it the commands whose callers wait; in the children the same processes go on, with nobody attached. Each gets an id of its own and inherits clocks, network, labels and environment. A child that cannot be made is told as an entry with `error`, and the others stand.",
      scope: "sandbox:write",
      body: forkSchema,
      answers: { 201: { description: "The children, in no particular order", schema: forkedSchema } },
    },
    async (call) =>
      await deps.api.once(
        call,
        async () => {
          // With a key the answer is kept for a client that comes back; without one nobody else will learn the ids.
          const isAbandoned = (): boolean => call.idempotencyKey === undefined && call.signal.aborted;
          const children = await fork(deps, call.caller.scope, call.param("id"), call.body, isAbandoned);
          call.note({ children: children.length });
          return {
            status: 201,
            body: {
              children: children.map((child) =>
                "sandbox" in child
                  ? { sandbox: shownSandbox(deps, child.sandbox) }
                  : { error: { code: child.error.code, message: child.error.message } },
              ),
            },
          };
        },
        false,
      ),
  );
}
