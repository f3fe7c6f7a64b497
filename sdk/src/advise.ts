import type { CallOptions } from "./call-options.ts";
import { NOT_SENT, requestJson } from "./request-json.ts";
import type { Transport } from "./transport.ts";
import type { AdviceWire, TakenAdviceWire, WorkloadWire } from "./advice-wire.ts";

type CamelCase<Name extends string> = Name extends `${infer First}_${infer Rest}`
  ? `${First}${Capitalize<CamelCase<Rest>>}`
  : Name;

/** The same with its names in camelCase. */
type Camel<T> = T extends readonly (infer Item)[]
  ? Camel<Item>[]
  : T extends object
    ? { [Name in keyof T as Name extends string ? CamelCase<Name> : Name]: Camel<T[Name]> }
    : T;

/**
 * What is known of what a sandbox is for. What is left out is unknown. `survives`: whether anything must survive between
 * uses, or which of the six kinds of state; `untrusted`: whether you do not trust the code; `interactive`: whether somebody
 * waits; `singleTenant`: whether it would only ever hold one tenant's data; `idleGapSeconds`: from one use to the next;
 * `setupSeconds`: to make a fresh one useful; `useSeconds`: how long one use takes, default 60.
 */
export type Workload = Camel<WorkloadWire>;

/** Which shape a workload should have, why, and what each alternative costs. Costs are not rounded. */
export type Advice = Camel<AdviceWire>;

/** What was advised for a sandbox made with `lifecycle: "auto"`, and what of it was taken. */
export type TakenAdvice = Camel<TakenAdviceWire>;

export interface AdviseOptions extends Workload, CallOptions {
  /** One of yours: its size, its image, its own sleeps and wakes, and how it was used count. */
  sandboxId?: string | undefined;
  /** Default `code-interpreter`. */
  template?: string | undefined;
}

/** As `Sandbox.advise`. */
export async function adviseOn(transport: Transport, options: AdviseOptions): Promise<Advice> {
  const { signal, timeoutMs } = options;
  const json = requestJson(options, NOT_SENT);
  const advice = await transport.json<AdviceWire>({
    method: "POST",
    path: "/v1/advise",
    json,
    signal,
    timeoutMs,
  });
  return camelCased(advice);
}

/** Options with their workload as the wire names it. */
export function withWorkload(options: { workload?: Workload | undefined }): object {
  const { workload } = options;
  if (workload === undefined) return options;
  return { ...options, workload: JSON.parse(requestJson(workload, new Set())) };
}

/** Names of the wire to ours, all the way down. */
export function camelCased<T>(value: T): Camel<T> {
  return renamed(value) as Camel<T>;
}

function renamed(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(renamed);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([name, entry]) => [
      name.replace(/_[a-z]/g, (match) => match.slice(1).toUpperCase()),
      renamed(entry),
    ]),
  );
}
