import { describeDriver } from "./driver-contract.ts";
import { openGvisorBed } from "./gvisor-bed.ts";

describeDriver("gVisor", async (stateDir) => {
  const bed = await openGvisorBed(stateDir);
  const { driver, slots, rootfsDir } = bed;
  return {
    driver,
    rootfsDir,
    makePlace: (diskMib) => slots.make(diskMib, "none"),
    removePlace: ({ slot }) => slots.clear(slot),
    close: () => bed.close(),
  };
});
