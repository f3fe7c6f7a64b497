import type { Instance } from "./instance.ts";

/** What E2B's clients are given to work against an instance: the options of every `Sandbox.create` and its like. */
export interface E2bOptions {
  apiKey: string;
  apiUrl: string;
  sandboxUrl: string;
}

/** Options that lead E2B's published clients to an instance with a server. The key is in the form that all of them take. */
export function e2bOptions({ url, apiKey }: Pick<Instance, "url" | "apiKey">): E2bOptions {
  return { apiKey: `e2b_${Buffer.from(apiKey, "utf8").toString("hex")}`, apiUrl: url, sandboxUrl: url };
}
