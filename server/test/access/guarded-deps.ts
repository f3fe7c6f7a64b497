/**
 * Fails to compile when a route could reach somebody's things by an id alone: every function of what routes are given
 * takes, first, a scope that only authentication makes, or a record that only a look-up with one gives.
 */
import type { HostScope, OperatorScope, ServerScope, TenantScope } from "../../src/auth/tenant-scope.ts";
import type { UploadGrant } from "../../src/e2b/template/template-files.ts";
import type { CodeServer } from "../../src/guest/code-server.ts";
import type { GuestClient } from "../../src/guest/guest-client.ts";
import type { HostClient } from "../../src/host/host-client.ts";
import type { OwnedMachine } from "../../src/host/owned-machine.ts";
import type { PlacedHost } from "../../src/host/placement.ts";
import type { RouteDeps } from "../../src/routes/route-deps.ts";
import type { AccountRecord } from "../../src/store/account-store.ts";
import type { IdempotencySlot } from "../../src/store/idempotency-store.ts";
import type { SandboxRecord } from "../../src/store/sandbox-record.ts";
import type { SnapshotRecord } from "../../src/store/snapshot-store.ts";
import type { BuildRecord, BuiltTemplate } from "../../src/store/template-store.ts";
import type { WebhookRecord } from "../../src/store/webhook-store.ts";

/** What proves that its holder may act. None can be made of what a request says; see `bin/lib/check-scopes.mjs`. */
type Capability =
  | TenantScope
  | OperatorScope
  | ServerScope
  | SandboxRecord
  | SnapshotRecord
  | WebhookRecord
  | BuiltTemplate
  | BuildRecord
  | UploadGrant
  | AccountRecord
  | IdempotencySlot
  | OwnedMachine;

/** Functions of `Thing` whose first argument is no capability, nor a list of them. */
type Unguarded<Thing> = {
  [Name in keyof Thing]: Thing[Name] extends (first: infer First, ...rest: never[]) => unknown
    ? [First] extends [Capability | readonly Capability[]]
      ? never
      : Name
    : never;
}[keyof Thing];

/** What routes are given that is about nobody's things. */
type Neutral =
  | "api"
  | "idempotency" // takes slots, which are capabilities, within its requests
  | "eventFeed" // wakes whoever waits, and carries nothing
  | "denials" // hears of what was refused, and gives nothing back
  | "checkpointKey" // signs what the ledger's store gave out
  | "targetGuard"
  | "budgetWatch" // looks at all budgets, and tells nobody but their owners
  | "metrics"
  | "e2b" // gives a domain, and tokens for records
  | "clock"
  | "log"
  | "version";

/** Functions without a capability, and why that is right. */
interface Exempt {
  /** Whether the store answers. */
  sandboxStore: "ping";
  /** Places in the log, which are the whole server's; what stands there takes a scope. */
  eventStore: "lastSeq" | "floor" | "requireKept";
  /** Which host; whatever is asked of it takes a record. */
  placement: "choose" | "of";
  /** Takes a secret that was given out to a scope, and gives leave to upload one archive of that one's. */
  templateFiles: "claim";
}
type ExemptOf<Name> = Name extends keyof Exempt ? Exempt[Name] : never;

/** Each way from a route to somebody's things without a capability, as `dependency.function`. */
type Open = {
  [Name in Exclude<keyof RouteDeps, Neutral>]: Exclude<
    Unguarded<RouteDeps[Name]>,
    ExemptOf<Name>
  > extends infer Function extends string
    ? `${Name}.${Function}`
    : never;
}[Exclude<keyof RouteDeps, Neutral>];

/** The host is asked of its own health and of templates, which all may see, without one, and told what to expect. */
type OpenHost = Exclude<
  Unguarded<HostClient>,
  "health" | "listTemplates" | "expectMachine" | "close" | "listMachines" | "events"
>;
/** These two hear of every machine of a host, and take its `HostScope`, which routes are not given. */
type Heard = Parameters<HostClient["listMachines" | "events"]>[0];

/** A guest is reached by who was made with a capability. */
type Reached = ConstructorParameters<typeof GuestClient>[1];
type ReachedForCode = ConstructorParameters<typeof CodeServer>[0]["record"];

type Same<A, B> = [A] extends [B] ? ([B] extends [A] ? true : false) : false;

/** A dependency that looks things up by what a request says: each way is found. */
interface Leaky {
  find(id: string): void;
  all(): void;
  pretended(scope: { account: string; tenant: string | null }): void;
  listed(ids: readonly string[]): void;
  either(scope: TenantScope | string): void;
  own(scope: TenantScope, id: string): void;
  act(record: SandboxRecord): void;
  many(records: readonly AccountRecord[]): void;
}

export const guarded: [
  Same<Open, never>,
  Same<OpenHost, never>,
  Same<Reached, OwnedMachine>,
  Same<ReachedForCode, SandboxRecord>,
  Same<Heard, HostScope>,
  Same<Extract<keyof PlacedHost, "scope">, never>,
  Same<Unguarded<Leaky>, "find" | "all" | "pretended" | "listed" | "either">,
] = [true, true, true, true, true, true, true];
