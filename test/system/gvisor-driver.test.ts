import { describeDriver } from "./driver-contract.ts";
import { openGvisorBed } from "./gvisor-bed.ts";

describeDriver("gVisor", async (stateDir) => {
  const { driver, slots, rootfsDir, close } = await openGvisorBed(stateDir);
  return {
    driver,
    rootfsDir,
    makePlace: (diskMib) => slots.make(diskMib, "none"),
    removePlace: ({ slot }) => slots.clear(slot),
    close,
  };
});
