export { instanceNames } from "./instance.ts";
