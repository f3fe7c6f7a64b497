import type { HeldState } from "../held-state.ts";
import type { Live } from "../phase.ts";

/** Stops a running machine in RAM; a failure leaves it running. */
export function pause(held: HeldState, live: Live): Promise<void> {
  const { driver } = held.parts;
  return held.move("paused", live, async () => {
    try {
      await driver.pause(live.handle);
      held.settle("paused", live, "paused");
    } catch (error) {
      driver.resume(live.handle);
      held.phase = { name: "running", live };
      held.clocks.arm();
      throw error;
    }
  });
}

/** Lets a paused machine go on. */
export function resume(held: HeldState, live: Live): void {
  held.parts.driver.resume(live.handle);
  held.activity.touch("resume");
  held.settle("running", live, "resumed");
}
