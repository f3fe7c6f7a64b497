export { instanceNames, type Instance } from "./instance.ts";
export { isAlive, processIdentity, type ProcessIdentity } from "./process-identity.ts";
export { Journal, type MachineEntry } from "./journal.ts";
export { writeBundle } from "./driver/gvisor/bundle.ts";
export { LAUNCHER_PATH, netSysctlsMustHide } from "./driver/gvisor/gvisor-driver.ts";
export { findRunsc, inspectRunsc, type RunscBuild } from "./driver/gvisor/runsc.ts";
export { SPARE_NETWORKS } from "./machine/slots.ts";
export { IP_FORWARD_MARK } from "./network/ip-forward.ts";
