import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { assert as assertProperty, asyncProperty, constantFrom } from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { canTransition, newSandboxId, randomText, SANDBOX_STATES, type SandboxState } from "@torpor/protocol";
import { HostScope, TenantScope } from "../src/auth/tenant-scope.ts";
import { hashApiKey, newApiKey } from "../src/auth/authenticator.ts";
import { IdempotencyStore, idempotencySlot } from "../src/store/idempotency-store.ts";
import { KeyStore } from "../src/store/key-store.ts";
import { type Database, openDatabase } from "../src/store/open-database.ts";
import type { SandboxRecord } from "../src/store/sandbox-record.ts";
import { type NewSandbox, SandboxStore } from "../src/store/sandbox-store.ts";
import { startPostgres } from "./postgres.ts";

const scopeOf = (account: string, tenant: string | null = null): TenantScope =>
  TenantScope.fromVerifiedKey({ keyId: "k", account, tenant });

describe.each(["sqlite", "postgres"] as const)("the store on %s", (kind) => {
  const release: (() => Promise<void> | void)[] = [];
  let location: Parameters<typeof openDatabase>[0];
  let database: Database;
  let sandboxes: SandboxStore;
  let keys: KeyStore;
  let idempotency: IdempotencyStore;

  beforeAll(async () => {
    if (kind === "postgres") {
      const postgres = await startPostgres();
      release.push(() => postgres[Symbol.asyncDispose]());
      location = { kind, url: postgres.url };
    } else {
      const directory = mkdtempSync(join(tmpdir(), "torpor-store-"));
      release.push(() => rmSync(directory, { recursive: true, force: true }));
      location = { kind, path: join(directory, "store.sqlite") };
    }
    database = await openDatabase(location);
    release.push(() => database.close());
    sandboxes = new SandboxStore(database);
    keys = new KeyStore(database);
    idempotency = new IdempotencyStore(database);
  }, 60_000);
  afterAll(async () => {
    for (const step of release.reverse()) await step();
  }, 30_000);

  const account = (): string => `account-${randomText(8)}`;
  const blank = (more: Partial<NewSandbox> = {}): NewSandbox => ({
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
    ...more,
  });

  async function inState(scope: TenantScope, state: SandboxState): Promise<SandboxRecord> {
    const way: Partial<Record<SandboxState, SandboxState[]>> = {
      creating: [],
      running: ["running"],
      pausing: ["running", "pausing"],
      paused: ["running", "pausing", "paused"],
      resuming: ["running", "pausing", "paused", "resuming"],
      hibernating: ["running", "hibernating"],
      hibernated: ["running", "hibernating", "hibernated"],
      waking: ["running", "hibernating", "hibernated", "waking"],
      snapshotting: ["running", "snapshotting"],
      failed: ["failed"],
      destroying: ["destroying"],
      destroyed: ["destroying", "destroyed"],
    };
    let record = await sandboxes.insert(scope, blank());
    for (const next of way[state] ?? []) record = (await sandboxes.advance(record, next)) ?? record;
    expect(record.state).toBe(state);
    return record;
  }

  test("gives back what was inserted, numbers as numbers and JSON as values", async () => {
    const scope = scopeOf(account());
    const inserted = await sandboxes.insert(scope, blank());
    const found = await sandboxes.find(scope, inserted.id);
    expect(found).toEqual(inserted);
    expect(found).toMatchObject({
      cpu: 0.5,
      memoryMb: 512,
      createdAt: 1_700_000_000_123,
      metadata: { a: "1" },
      name: "näme",
      attestation: null,
      generation: 1,
    });
  });

  test("takes an id once", async () => {
    const scope = scopeOf(account());
    const sandbox = blank();
    await sandboxes.insert(scope, sandbox);
    await expect(sandboxes.insert(scope, sandbox)).rejects.toThrow();
  });

  test("hides what is another account's, tenant's or host's", async () => {
    const name = account();
    const { id } = await sandboxes.insert(scopeOf(name), blank());
    expect(await sandboxes.find(scopeOf(name, "t"), id)).toBeDefined();
    expect(await sandboxes.find(scopeOf(name, "u"), id)).toBeUndefined();
    expect(await sandboxes.find(scopeOf(account()), id)).toBeUndefined();
    expect(await sandboxes.findOnHost(HostScope.fromHostLink("h"), id)).toBeDefined();
    expect(await sandboxes.findOnHost(HostScope.fromHostLink("other"), id)).toBeUndefined();
    expect((await sandboxes.list(scopeOf(name, "u"), { states: [], metadata: {}, limit: 10 })).items).toEqual(
      [],
    );
    await expect(sandboxes.insert(scopeOf(name, "u"), blank())).rejects.toThrow(/bound to tenant u/);
  });

  test("moves states by the table and no other way", async () => {
    const scope = scopeOf(account());
    await assertProperty(
      asyncProperty(constantFrom(...SANDBOX_STATES), constantFrom(...SANDBOX_STATES), async (from, to) => {
        const record = await inState(scope, from);
        if (canTransition(from, to)) expect((await sandboxes.advance(record, to))?.state).toBe(to);
        else await expect(sandboxes.advance(record, to)).rejects.toThrow(`cannot go from ${from} to ${to}`);
      }),
      { numRuns: 60 },
    );
  });

  test("lets one of many racing movers win, and tells the others", async () => {
    const scope = scopeOf(account());
    const record = await inState(scope, "running");
    const results = await Promise.all(
      Array.from({ length: 12 }, (_, index) =>
        sandboxes.advance(record, "destroying", { reason: `r${index}` }),
      ),
    );
    const winners = results.filter((result) => result !== undefined);
    expect(winners).toHaveLength(1);
    expect((await sandboxes.find(scope, record.id))?.reason).toBe(winners[0]?.reason);
    expect(await sandboxes.advance(record, "pausing")).toBeUndefined();
  });

  test("keeps what changes together with a state", async () => {
    const scope = scopeOf(account());
    const record = await sandboxes.insert(scope, blank());
    const attestation = {
      generation: 1,
      steps: [{ name: "clock", outcome: "done" as const }],
      complete: true,
    };
    const running = await sandboxes.advance(record, "running", {
      driver: "gvisor",
      attestation,
      startedAt: 5,
      expiresAt: null,
    });
    expect(running).toMatchObject({ driver: "gvisor", attestation, startedAt: 5, expiresAt: null });
    expect(await sandboxes.setDeadline(record, 77)).toMatchObject({ expiresAt: 77, state: "running" });
    const ended = await sandboxes.advance(running ?? record, "destroying");
    await sandboxes.advance(ended ?? record, "destroyed", { endedAt: 9, reason: "oom" });
    expect(await sandboxes.setDeadline(record, 78)).toBeUndefined();
    expect(await sandboxes.find(scope, record.id)).toMatchObject({
      state: "destroyed",
      endedAt: 9,
      reason: "oom",
      expiresAt: 77,
    });
  });

  test("lists newest first, page by page, while others are inserted", async () => {
    const scope = scopeOf(account());
    const ids = [];
    for (let index = 0; index < 7; index += 1)
      ids.push((await sandboxes.insert(scope, blank({ createdAt: 1_000 + Math.floor(index / 2) }))).id);
    const seen: string[] = [];
    let cursor: string | null = null;
    do {
      const page: { items: SandboxRecord[]; nextCursor: string | null } = await sandboxes.list(scope, {
        states: [],
        metadata: {},
        limit: 3,
        ...(cursor === null ? {} : { cursor }),
      });
      seen.push(...page.items.map(({ id }) => id));
      cursor = page.nextCursor;
      await sandboxes.insert(scope, blank({ createdAt: 9_999 }));
    } while (cursor !== null);
    expect(seen.toSorted()).toEqual(ids.toSorted());
  });

  test("filters by metadata whatever characters are in it", async () => {
    const scope = scopeOf(account());
    const metadata = { 'a"b': "x'y", "c.d": "%_\\", é: "ü", "{": "}" };
    const { id } = await sandboxes.insert(scope, blank({ metadata }));
    await sandboxes.insert(scope, blank({ metadata: { 'a"b': "other" } }));
    for (const [key, value] of Object.entries(metadata)) {
      const page = await sandboxes.list(scope, {
        states: ["creating"],
        metadata: { [key]: value },
        limit: 10,
        template: "base",
        tenant: "t",
      });
      expect(page.items.map((item) => item.id)).toEqual([id]);
    }
    expect(
      (await sandboxes.list(scope, { states: [], metadata: { ...metadata, more: "1" }, limit: 10 })).items,
    ).toEqual([]);
  });

  test("records activity forwards only and purges the longest ended first, in batches", async () => {
    const scope = scopeOf(account());
    const record = await sandboxes.insert(scope, blank());
    await sandboxes.touch(record, record.lastActivityAt + 5);
    await sandboxes.touch(record, record.lastActivityAt + 1);
    expect((await sandboxes.find(scope, record.id))?.lastActivityAt).toBe(record.lastActivityAt + 5);
    const ended = [];
    for (const endedAt of [1, 2, 3]) {
      const one = await inState(scope, "destroying");
      ended.push((await sandboxes.advance(one, "destroyed", { endedAt }))?.id ?? "");
    }
    expect(await sandboxes.purgeEnded(3, 1)).toBe(1);
    expect(await sandboxes.find(scope, ended[0] ?? "")).toBeUndefined();
    while ((await sandboxes.purgeEnded(3, 100)) > 0);
    expect(await sandboxes.find(scope, ended[1] ?? "")).toBeUndefined();
    expect(await sandboxes.find(scope, ended[2] ?? "")).toBeDefined();
    expect((await sandboxes.liveOnHost(HostScope.fromHostLink("h"))).some(({ id }) => id === ended[2])).toBe(
      false,
    );
    expect(
      (await sandboxes.countByState()).find(({ state }) => state === "destroyed")?.count,
    ).toBeGreaterThan(0);
  });

  test("finds keys by hash alone, revokes once and within the scope", async () => {
    const name = account();
    const key = newApiKey();
    const made = await keys.insert({
      id: `key_${randomText(10)}`,
      account: name,
      name: "n",
      prefix: "tp_",
      hash: hashApiKey(key),
      tenant: "t",
      scopes: ["sandbox:read"],
      createdAt: 1,
      expiresAt: 2,
    });
    expect(await keys.findByHash(hashApiKey(key))).toEqual(made);
    expect(await keys.findByHash(hashApiKey(newApiKey()))).toBeUndefined();
    expect(await keys.revoke(scopeOf(name, "u"), made.id, 5)).toBeUndefined();
    expect(await keys.revoke(scopeOf(name), made.id, 5)).toMatchObject({ revokedAt: 5 });
    expect(await keys.revoke(scopeOf(name), made.id, 6)).toMatchObject({ revokedAt: 5 });
    await keys.markUsed(made, 8);
    expect(await keys.list(scopeOf(name))).toEqual([{ ...made, revokedAt: 5, lastUsedAt: 8 }]);
  });

  test("gives an idempotency slot to one of many, and lets one take it over from a dead owner", async () => {
    const slot = idempotencySlot(scopeOf(account()), "POST /x", "k");
    const claims = await Promise.all(
      Array.from({ length: 10 }, (_, index) => idempotency.claim(slot, "hash", `owner${index}`, 1, "first")),
    );
    expect(claims.filter((claim) => claim === "claimed")).toHaveLength(1);
    const row = await idempotency.find(slot);
    expect(row).toMatchObject({ body_hash: "hash", progress: "first", status: null });
    if (row === undefined) throw new Error("no row");
    const takers = await Promise.all(
      Array.from({ length: 5 }, (_, index) => idempotency.takeOver(row, `taker${index}`, 2)),
    );
    expect(takers.filter(Boolean)).toHaveLength(1);
    await idempotency.noteProgress(slot, "second");
    await idempotency.heartbeat((await idempotency.find(slot))?.owner ?? "", 3);
    expect(await idempotency.find(slot)).toMatchObject({ progress: "second", heartbeat_at: 3 });
    await idempotency.finish(slot, 201, '{"a":1}');
    const done = await idempotency.find(slot);
    expect(done).toMatchObject({ status: 201, body: '{"a":1}' });
    expect(await idempotency.takeOver(done ?? row, "late", 4)).toBe(false);
    expect(await idempotency.purge(1, 10)).toBe(0);
    expect(await idempotency.purge(2, 10)).toBe(1);
    expect(await idempotency.claim(slot, "hash", "again", 5, null)).toBe("claimed");
    await idempotency.release(slot);
    expect(await idempotency.find(slot)).toBeUndefined();
  });

  test("opens again with everything in it, and migrates nothing twice", async () => {
    const scope = scopeOf(account());
    const { id } = await sandboxes.insert(scope, blank());
    const second = await openDatabase(location);
    expect(await new SandboxStore(second).find(scope, id)).toBeDefined();
    await second.close();
  });
});
