import { afterAll, beforeAll } from "vitest";
import { Instance, type InstanceOptions } from "./instance.ts";
import { expectNoLeaks, lookAtMachine, type MachineState } from "./leak-check.ts";

/**
 * An instance for the tests of one file: started before them, stopped after them, and after that the machine must look as
 * it did before.
 *
 * @returns gives the instance; to be called inside tests only
 */
export function useInstance(options: InstanceOptions = {}): () => Instance {
  let instance: Instance | undefined;
  let before: MachineState | undefined;
  beforeAll(async () => {
    before = await lookAtMachine("/nonexistent");
    instance = await Instance.start(options);
  });
  afterAll(async () => {
    if (instance === undefined || before === undefined) return;
    try {
      await instance.stop();
      await expectNoLeaks(instance.stateDir, before);
    } finally {
      await instance.remove();
    }
  });
  return () => {
    if (instance === undefined) throw new Error("the instance is not started yet: ask for it inside a test");
    return instance;
  };
}
