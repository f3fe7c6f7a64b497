export { instanceNames, type Instance } from "./instance.ts";
export { isAlive, processIdentity, type ProcessIdentity } from "./process-identity.ts";
