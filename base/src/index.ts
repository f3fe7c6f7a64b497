export * from "./clock.ts";
export * from "./gate.ts";
export * from "./http-upgrade.ts";
export * from "./log.ts";
export * from "./private-file.ts";
export * from "./run.ts";
export * from "./scope.ts";
export * from "./secret-values.ts";
