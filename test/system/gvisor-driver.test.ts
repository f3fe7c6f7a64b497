import { describeDriver } from "./driver-contract.ts";
import { openGvisorBed } from "./gvisor-bed.ts";

describeDriver("gVisor", async (stateDir) => {
  const bed = await openGvisorBed(stateDir);
  const { driver, slots, root } = bed;
  return {
    driver,
    root,
    makePlace: (diskMib) => slots.make(diskMib, "none"),
    removePlace: ({ slot }) => slots.clear(slot),
    close: () => bed.close(),
  };
});
