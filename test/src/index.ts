export * from "./eventually.ts";
export * from "./host-client.ts";
export * from "./http-client.ts";
export * from "./instance.ts";
export * from "./leak-check.ts";
export * from "./repository.ts";
export * from "./template-cache.ts";
export * from "./use-instance.ts";
