import { Sandbox as CodeSandbox } from "@e2b/code-interpreter";
import { Sandbox } from "e2b";
import { Sandbox as Sandbox245 } from "e2b-2.45";
import { e2bOptions, eventually, type Instance } from "../src/index.ts";

export type E2bSandbox = Sandbox;

/** Clients that suites run with; both have one interface inside a sandbox, so the older is taken as the newer. */
export const e2bClients = [
  { version: "2.51.0", Sandbox },
  { version: "2.45.0", Sandbox: Sandbox245 as unknown as typeof Sandbox },
];

/** Makes a sandbox of an instance with a server as E2B's client does; it ends with the instance. */
export function e2bSandbox(
  instance: Instance,
  client: { Sandbox: typeof Sandbox },
  options: { envs?: Record<string, string> } = {},
): Promise<E2bSandbox> {
  return client.Sandbox.create("base", { ...e2bOptions(instance), timeoutMs: 600_000, ...options });
}

/** The same with the code interpreter's client and template. */
export function e2bCodeSandbox(
  instance: Instance,
  options: { envs?: Record<string, string> } = {},
): Promise<CodeSandbox> {
  return CodeSandbox.create({ ...e2bOptions(instance), timeoutMs: 600_000, ...options });
}

/** Waits until `check` throws no more. @throws Error with what it threw last after 10 s */
export function settles(check: () => unknown): Promise<boolean> {
  return eventually("a check to hold", async () => {
    await check();
    return true;
  });
}
