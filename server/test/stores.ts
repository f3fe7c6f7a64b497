import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { newSandboxId, newSnapshotId, randomText } from "@torpor/protocol";
import { afterAll, beforeAll } from "vitest";
import { TenantScope } from "../src/auth/tenant-scope.ts";
import { AccountStore } from "../src/store/account-store.ts";
import { HostSandboxStore } from "../src/store/host-sandbox-store.ts";
import { IdempotencyStore } from "../src/store/idempotency-store.ts";
import { KeyStore } from "../src/store/key-store.ts";
import type { NewSandbox } from "../src/store/new-sandbox.ts";
import { type Database, openDatabase } from "../src/store/open-database.ts";
import { SandboxStore } from "../src/store/sandbox-store.ts";
import { SessionStore } from "../src/store/session-store.ts";
import { type NewSnapshot, SnapshotStore } from "../src/store/snapshot-store.ts";
import { startPostgres } from "./postgres.ts";

/** Every database that the stores run on. */
export const DATABASE_KINDS = ["sqlite", "postgres"] as const;

/** The stores on one database of their own. */
export interface Stores {
  location: Parameters<typeof openDatabase>[0];
  database: Database;
  sandboxes: SandboxStore;
  ofHosts: HostSandboxStore;
  snapshots: SnapshotStore;
  sessions: SessionStore;
  keys: KeyStore;
  accounts: AccountStore;
  idempotency: IdempotencyStore;
}

/** Opens them before the tests of a group and closes them after. @returns what is filled in then: for use inside tests */
export function useStores(kind: (typeof DATABASE_KINDS)[number]): Stores {
  const stores = {} as Stores;
  const release: (() => Promise<void> | void)[] = [];
  beforeAll(async () => {
    if (kind === "postgres") {
      const postgres = await startPostgres();
      release.push(() => postgres[Symbol.asyncDispose]());
      stores.location = { kind, url: postgres.url };
    } else {
      const directory = mkdtempSync(join(tmpdir(), "torpor-store-"));
      release.push(() => rmSync(directory, { recursive: true, force: true }));
      stores.location = { kind, path: join(directory, "store.sqlite") };
    }
    const database = await openDatabase(stores.location);
    release.push(() => database.close());
    Object.assign(stores, {
      database,
      sandboxes: new SandboxStore(database),
      ofHosts: new HostSandboxStore(database),
      snapshots: new SnapshotStore(database),
      sessions: new SessionStore(database),
      keys: new KeyStore(database),
      accounts: new AccountStore(database),
      idempotency: new IdempotencyStore(database),
    } satisfies Omit<Stores, "location">);
  }, 60_000);
  afterAll(async () => {
    for (const step of release.reverse()) await step();
  }, 30_000);
  return stores;
}

export const scopeOf = (account: string, tenant: string | null = null): TenantScope =>
  TenantScope.fromVerifiedKey({ keyId: "k", account, tenant });

/** The name of an account that no other test has. */
export const account = (): string => `account-${randomText(8)}`;
/** A sandbox as a create asks for it. */
export const blank = (more: Partial<NewSandbox> = {}): NewSandbox => ({
  id: newSandboxId(),
  tenant: "t",
  name: "näme",
  template: "base",
  metadata: { a: "1" },
  cpu: 0.5,
  memoryMb: 512,
  diskMb: 1024,
  network: "none",
  host: "h",
  createdAt: 1_700_000_000_123,
  expiresAt: 1_700_000_300_123,
  onExpire: "destroy",
  persistent: false,
  idleTimeoutSeconds: null,
  onIdle: "hibernate",
  retentionSeconds: null,
  autoWake: true,
  hibernateMemory: true,
  ...more,
});

/** A snapshot that is about to be taken. */
export const blankSnapshot = (of: string): NewSnapshot => ({
  id: newSnapshotId(),
  account: of,
  tenant: "t",
  sandbox_id: newSandboxId(),
  host: "h",
  name: "n",
  kind: "user",
  template: "base",
  cpu: 0.5,
  memory_mb: 512,
  disk_mb: 1024,
  network: "none",
  size_bytes: 0,
  generation: 1,
  retention_seconds: null,
  created_at: 1_700_000_000_000,
  expires_at: null,
});
