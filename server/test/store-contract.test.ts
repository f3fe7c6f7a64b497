import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { assert as assertProperty, asyncProperty, constantFrom } from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import {
  canTransition,
  newSandboxId,
  newSnapshotId,
  randomText,
  SANDBOX_STATES,
  type SandboxState,
} from "@torpor/protocol";
import { HostScope, ServerScope, OperatorScope, TenantScope } from "../src/auth/tenant-scope.ts";
import { hashApiKey, newApiKey } from "../src/auth/authenticator.ts";
import { AccountStore } from "../src/store/account-store.ts";
import { IdempotencyStore, idempotencySlot } from "../src/store/idempotency-store.ts";
import { EventStore, type EventWriter } from "../src/store/event-store.ts";
import { KeptQueries } from "../src/store/kept-queries.ts";
import { LedgerStore, type LedgerWriter, sha256 } from "../src/store/ledger-store.ts";
import { KeyStore } from "../src/store/key-store.ts";
import { type Database, openDatabase } from "../src/store/open-database.ts";
import type { SandboxRecord } from "../src/store/sandbox-record.ts";
import { HostSandboxStore } from "../src/store/host-sandbox-store.ts";
import type { NewSandbox } from "../src/store/new-sandbox.ts";
import { SandboxStore } from "../src/store/sandbox-store.ts";
import { SessionStore } from "../src/store/session-store.ts";
import { type NewSnapshot, type SnapshotRecord, SnapshotStore } from "../src/store/snapshot-store.ts";
import { TemplateStore } from "../src/store/template-store.ts";
import { ledgerOf } from "./ledger-world.ts";
import { startPostgres } from "./postgres.ts";

const housekeeping = ServerScope.forHousekeeping();
const scopeOf = (account: string, tenant: string | null = null): TenantScope =>
  TenantScope.fromVerifiedKey({ keyId: "k", account, tenant });

describe.each(["sqlite", "postgres"] as const)("the store on %s", (kind) => {
  const release: (() => Promise<void> | void)[] = [];
  let location: Parameters<typeof openDatabase>[0];
  let database: Database;
  let sandboxes: SandboxStore;
  let ofHosts: HostSandboxStore;
  let snapshots: SnapshotStore;
  let sessions: SessionStore;
  let keys: KeyStore;
  let accounts: AccountStore;
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
    ofHosts = new HostSandboxStore(database);
    snapshots = new SnapshotStore(database);
    sessions = new SessionStore(database);
    keys = new KeyStore(database);
    accounts = new AccountStore(database);
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
    onExpire: "destroy",
    persistent: false,
    idleTimeoutSeconds: null,
    onIdle: "hibernate",
    retentionSeconds: null,
    autoWake: true,
    hibernateMemory: true,
    ...more,
  });

  const blankSnapshot = (of: string): NewSnapshot => ({
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

  test("finds snapshots of one's own tenant, ready and in time, and what is left over", async () => {
    const name = account();
    const now = 1_700_000_000_000;
    const make = async (more: Partial<NewSnapshot> = {}): Promise<SnapshotRecord> =>
      await snapshots.insert(scopeOf(name), { ...blankSnapshot(name), created_at: now, ...more });
    const made = await make();
    expect(await snapshots.find(scopeOf(name), made.id, now)).toBeUndefined();
    expect(await snapshots.finish(made, { sizeBytes: 5_000_000_000, generation: 3 })).toMatchObject({
      sizeBytes: 5_000_000_000,
      generation: 3,
      cpu: 0.5,
    });
    expect(await snapshots.find(scopeOf(name, "t"), made.id, now)).toMatchObject({ id: made.id });
    expect(await snapshots.find(scopeOf(name, "u"), made.id, now)).toBeUndefined();
    expect(await snapshots.find(scopeOf(account()), made.id, now)).toBeUndefined();
    const short = await make({ expires_at: now + 10, created_at: now + 1 });
    const fork = await make({ kind: "fork" });
    for (const one of [short, fork]) await snapshots.finish(one, { sizeBytes: 1, generation: 1 });
    const all = await snapshots.list(scopeOf(name), { limit: 1, now });
    expect(all.items.map(({ id }) => id)).toEqual([short.id]);
    const rest = await snapshots.list(scopeOf(name), { limit: 5, now, cursor: all.nextCursor ?? "" });
    expect(rest).toMatchObject({ items: [{ id: made.id }], nextCursor: null });
    expect((await snapshots.list(scopeOf(name), { limit: 5, now, name: "other" })).items).toEqual([]);
    expect(await snapshots.find(scopeOf(name), short.id, now + 10)).toBeUndefined();
    const left = async (at: number, madeBefore: number): Promise<string[]> =>
      (await snapshots.leftovers(housekeeping, at, madeBefore, 100))
        .filter((one) => one.account === name)
        .map(({ id }) => id)
        .sort();
    expect(await left(now, now)).toEqual([]);
    expect(await left(now + 10, now)).toEqual([short.id]);
    expect(await left(now, now + 1)).toEqual([fork.id]);
    await snapshots.markDeleting(made);
    expect(await snapshots.find(scopeOf(name), made.id, now)).toBeUndefined();
    expect(await left(now, now)).toEqual([made.id]);
    await snapshots.remove(made, "system:test");
    expect(await left(now, now)).toEqual([]);
  });

  test("the image of a built template is left over once no build names it", async () => {
    const name = account();
    const now = 1_700_000_000_000;
    const templates = new TemplateStore(database);
    const image = await snapshots.insert(scopeOf(name), {
      ...blankSnapshot(name),
      kind: "template",
      created_at: now,
    });
    await snapshots.finish(image, { sizeBytes: 1, generation: 1 });
    const left = async (madeBefore: number): Promise<string[]> =>
      (await snapshots.leftovers(housekeeping, now, madeBefore, 100))
        .filter((one) => one.account === name)
        .map(({ id }) => id);
    expect(await left(now)).toEqual([]);
    expect(await left(now + 1)).toEqual([image.id]);
    const asked = { name: "mine", tags: ["default"], cpu: null, memoryMb: null, minFreeDiskMb: null };
    const { build } = await templates.request(scopeOf(name), asked, now);
    await templates.begin(build, now);
    const made = { snapshotId: image.id, defaults: { env: {}, user: "user", workdir: "/" } };
    expect(await templates.finish(build, made, now)).toBe(true);
    expect(await left(now + 1)).toEqual([]);
    await templates.removeBuild(build);
    expect(await left(now + 1)).toEqual([image.id]);
  });

  test("counts a tenant's builds by state, and keeps why one failed whatever its command said", async () => {
    const name = account();
    const templates = new TemplateStore(database);
    const asked = { name: "mine", tags: [], cpu: null, memoryMb: null, minFreeDiskMb: null };
    const { template, build } = await templates.request(scopeOf(name), asked, 1);
    await templates.request(scopeOf(name), asked, 2);
    await templates.request(scopeOf(name, "t"), asked, 3);
    await templates.begin(build, 4);
    expect(await templates.countIn(scopeOf(name), ["waiting", "building"])).toBe(2);
    expect(await templates.countIn(build, ["building"])).toBe(1);
    await templates.fail(build, { message: "a\0b \ud83d", step: "1" }, 5);
    expect(await templates.findBuild(template, build.id)).toMatchObject({
      status: "error",
      failure: { message: "ab \ufffd", step: "1" },
    });
  });

  test("finds sandboxes by what E2B's create called their template, with any tag", async () => {
    const scope = scopeOf(account());
    const made = async (template: string | null): Promise<string> => {
      const e2b =
        template === null
          ? null
          : { publicTraffic: true, maskRequestHost: null, wakeTtlSeconds: 300, template };
      return (await sandboxes.insert(scope, { ...blank(), e2b })).id;
    };
    const mine = [await made("My-Tpl"), await made("my-tpl:v1"), await made("tpl123")];
    for (const other of ["my-tpl2", "my_tpl", "base", null]) await made(other);
    const found = async (references: string[]): Promise<string[]> => {
      const page = await sandboxes.list(scope, { states: [], metadata: {}, limit: 50, references });
      return page.items.map(({ id }) => id).sort();
    };
    expect(await found(["tpl123", "my-tpl"])).toEqual(mine.sort());
    expect(await found(["nothing"])).toEqual([]);
  });

  test("gives a session's name to one sandbox, however many ask", async () => {
    const name = { account: account(), tenant: "t", key: "chat 42" };
    const rows = await Promise.all(
      Array.from({ length: 12 }, (_, index) => sessions.findOrClaim(name, `s${index}`, index)),
    );
    expect(new Set(rows.map((row) => row.sandbox_id)).size).toBe(1);
    const [row] = rows;
    if (row === undefined) throw new Error("no row");
    expect((await sessions.findOrClaim({ ...name, tenant: "u" }, "other", 1)).sandbox_id).toBe("other");
    const won = await Promise.all(
      Array.from({ length: 5 }, (_, index) => sessions.replace(row, `n${index}`, 1)),
    );
    expect(won.filter(Boolean)).toHaveLength(1);
    await sessions.release(name, row.sandbox_id);
    const now = await sessions.findOrClaim(name, "late", 2);
    expect(now.sandbox_id).toMatch(/^n/);
    expect(await sessions.purge(housekeeping, 0, 100)).toBe(0);
    expect(await sessions.purge(housekeeping, 10, 100)).toBeGreaterThanOrEqual(1);
    expect((await sessions.findOrClaim(name, "late", 2)).sandbox_id).toBe("late");
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
    expect(await ofHosts.find(HostScope.fromHostLink("h"), id)).toBeDefined();
    expect(await ofHosts.find(HostScope.fromHostLink("other"), id)).toBeUndefined();
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
    const noted = await sandboxes.note(running ?? record, {
      expiresAt: 77,
      generation: 2,
      image: { size_bytes: 5, created_at: "2026-01-01T00:00:00.000Z", memory: true },
      persistent: true,
      autoWake: false,
      hibernateMemory: false,
      onIdle: "pause",
      idleTimeoutSeconds: 9,
      retentionSeconds: 10,
      onExpire: "hibernate",
    });
    expect(noted).toMatchObject({
      expiresAt: 77,
      state: "running",
      generation: 2,
      image: { size_bytes: 5 },
      persistent: true,
      autoWake: false,
      hibernateMemory: false,
      onIdle: "pause",
      idleTimeoutSeconds: 9,
      retentionSeconds: 10,
      onExpire: "hibernate",
    });
    // What was seen of the generation before holds no more.
    expect(await sandboxes.advance(running ?? record, "destroying")).toBeUndefined();
    const ended = await sandboxes.advance(noted ?? record, "destroying");
    await sandboxes.advance(ended ?? record, "destroyed", { endedAt: 9, reason: "oom" });
    expect(await sandboxes.note(noted ?? record, { expiresAt: 78 })).toBeUndefined();
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

  test("several servers make one chain of the ledger, also where one's write is undone or another's is not known to it", async () => {
    const scope = scopeOf(account());
    const others = new SandboxStore(database);
    for (const store of [sandboxes, others, others, sandboxes, sandboxes]) await store.insert(scope, blank());
    const failing: EventWriter = {
      append: () => Promise.reject(new Error("the disk is full")),
      committed: () => {},
    };
    const ledger = new LedgerStore(database);
    const undone: LedgerWriter = {
      append: async (transaction, drafts) => {
        await ledger.append(transaction, drafts);
        throw new Error("undone");
      },
    };
    await expect(new SandboxStore(database, failing).insert(scope, blank())).rejects.toThrow("disk is full");
    await expect(new SandboxStore(database, undefined, undone).insert(scope, blank())).rejects.toThrow(
      "undone",
    );
    const writer = new SandboxStore(database, undefined, ledger); // whose last word was undone
    await writer.insert(scope, blank());
    await Promise.all([writer, sandboxes, others, writer].map((store) => store.insert(scope, blank())));
    const { head, lines } = await ledgerOf(database);
    let prev = head.ledger;
    for (const [at, { seq, hash, entry }] of lines.entries()) {
      expect(JSON.parse(entry)).toMatchObject({ seq: at + 1, prev });
      expect([seq, hash]).toEqual([at + 1, sha256(entry)]);
      prev = hash;
    }
    expect(head).toMatchObject({ seq: lines.length, hash: prev });
  });

  test("the event of a create is told once its record is on the disk, also when the store is closed meanwhile", async () => {
    const other = await openDatabase(location);
    const told: number[] = [];
    let onTold = (): void => {};
    const events = new EventStore(other, undefined, () => {
      told.push(1);
      onTold();
    });
    const isTold = new Promise<void>((resolve) => (onTold = resolve));
    await new SandboxStore(other, events).insert(scopeOf(account()), blank());
    if (kind === "sqlite") expect(told).toEqual([]); // not before
    await isTold;
    await new SandboxStore(other, events).insert(scopeOf(account()), blank());
    await other.close();
    await other.flush().catch(() => {}); // a log that is closed is no reason to crash
  });

  test("a kept query is never run with what it was not built for", async () => {
    const queries = new KeptQueries();
    const byId = (id: string) => () => database.db.selectFrom("accounts").select("id").where("id", "=", id);
    expect((await queries.run(database.db, "one", ["default"], byId("default"))).rows).toEqual([
      { id: "default" },
    ]);
    expect((await queries.run(database.db, "one", ["nobody"], byId("nobody"))).rows).toEqual([]);
    await expect(queries.run(database.db, "two", ["x", "y"], byId("x"))).rejects.toThrow("other parameters");
    await expect(queries.run(database.db, "two", ["y"], byId("x"))).rejects.toThrow("other parameters");
  });

  test("records activity forwards only and purges the longest ended first, in batches", async () => {
    const scope = scopeOf(account());
    const record = await sandboxes.insert(scope, blank());
    await sandboxes.touch(record, record.lastActivityAt + 5);
    await sandboxes.touch(record, record.lastActivityAt + 1);
    expect((await sandboxes.find(scope, record.id))?.lastActivityAt).toBe(record.lastActivityAt + 5);
    const ended: string[] = [];
    for (const endedAt of [1, 2, 3]) {
      const one = await inState(scope, "destroying");
      ended.push((await sandboxes.advance(one, "destroyed", { endedAt }))?.id ?? "");
    }
    expect(await sandboxes.purgeEnded(housekeeping, 3, 1)).toBe(1);
    expect(await sandboxes.find(scope, ended[0] ?? "")).toBeUndefined();
    while ((await sandboxes.purgeEnded(housekeeping, 3, 100)) > 0);
    expect(await sandboxes.find(scope, ended[1] ?? "")).toBeUndefined();
    expect(await sandboxes.find(scope, ended[2] ?? "")).toBeDefined();
    expect((await ofHosts.live(HostScope.fromHostLink("h"))).records.some(({ id }) => id === ended[2])).toBe(
      false,
    );
    expect(
      (await sandboxes.countByState(housekeeping)).find(({ state }) => state === "destroyed")?.count,
    ).toBeGreaterThan(0);
  });

  describe("of an account", () => {
    const operator = OperatorScope.fromVerifiedKey("k");
    const limited = async (limits: object, tenantLimits: object = {}): Promise<string> => {
      const id = account();
      await accounts.insert(operator, id, { limits, tenantLimits }, 7);
      return id;
    };

    test("makes one of a name, and changes its limits one by one", async () => {
      const id = account();
      const changes = { limits: { max_lifetime_seconds: 9, cpu: 1.5 }, tenantLimits: { sandboxes: 2 } };
      const made = await Promise.all(
        Array.from({ length: 5 }, () => accounts.insert(operator, id, changes, 7)),
      );
      const [one, ...others] = made.filter((each) => each !== undefined);
      expect(others).toEqual([]);
      expect(one).toMatchObject({
        id,
        createdAt: 7,
        limits: { cpu: 1.5, disk_mb: null },
        tenantLimits: { sandboxes: 2 },
      });
      expect(await accounts.own(scopeOf(id))).toEqual(await accounts.find(operator, id));
      expect(await accounts.find(operator, account())).toBeUndefined();
      await expect(accounts.own(scopeOf(account()))).rejects.toThrow("no row");
      const none = { limits: {}, tenantLimits: {} };
      expect(await accounts.setLimits(operator, account(), none)).toBeUndefined();
      expect(await accounts.setLimits(operator, id, none)).toEqual(one);
      const changed = await accounts.setLimits(operator, id, {
        limits: { cpu: null },
        tenantLimits: { sandboxes: null, cpu: 3 },
      });
      expect(changed?.limits).toMatchObject({ max_lifetime_seconds: 9, cpu: null });
      expect(changed?.tenantLimits).toMatchObject({ sandboxes: null, cpu: 3 });
    });

    test("counts what there is: what is awake, what lives, what is kept, what was made within a minute", async () => {
      const id = await limited({});
      const record = await accounts.own(scopeOf(id));
      const shape = { cpu: 0.3, memoryMb: 100, diskMb: 10 };
      const make = async (changes: Partial<NewSandbox> = {}): Promise<SandboxRecord> =>
        await sandboxes.insert(scopeOf(id), { ...blank(), ...shape, createdAt: 1_000_000, ...changes });
      await make();
      const asleep = await make({ tenant: "other" });
      const to = async (
        seen: SandboxRecord | undefined,
        state: SandboxState,
        image?: SandboxRecord["image"],
      ) => seen && (await sandboxes.advance(seen, state, image === undefined ? {} : { image }));
      await to(await to(await to(asleep, "running"), "hibernating"), "hibernated", {
        size_bytes: 5_000_000_000,
        created_at: "2026-01-01T00:00:00.000Z",
        memory: true,
      });
      await to(await to(await make({ createdAt: 900_000 }), "destroying"), "destroyed");
      await to(await make(), "failed");
      await snapshots.insert(scopeOf(id), { ...blankSnapshot(id), tenant: "other", size_bytes: 7 });
      expect(await accounts.usage(record, 1_000_500)).toEqual({
        sandboxes: 3,
        sandboxes_awake: 1,
        cpu: 0.3,
        memory_mb: 100,
        disk_mb: 30,
        image_bytes: 5_000_000_007,
        creates_per_minute: 3,
      });
      expect(await accounts.tenantUsage(scopeOf(id), "other", 1_000_500)).toMatchObject({
        sandboxes: 1,
        sandboxes_awake: 0,
        image_bytes: 5_000_000_007,
      });
    });

    test.each([
      ["sandboxes", { sandboxes: 10 }, {}],
      ["sandboxes_awake", { sandboxes_awake: 10 }, {}],
      ["cpu", { cpu: 5 }, {}],
      ["memory_mb", { memory_mb: 5_000 }, {}],
      ["disk_mb", { disk_mb: 5_000 }, {}],
      ["creates_per_minute", { creates_per_minute: 10 }, {}],
      ["sandboxes", { sandboxes: 50 }, { sandboxes: 10 }],
    ])("lets 10 of 100 that are made at once past %s of %j, %j", async (limit, limits, tenantLimits) => {
      const id = await limited(limits, tenantLimits);
      const outcomes = await Promise.allSettled(
        Array.from({ length: 100 }, () =>
          sandboxes.insert(scopeOf(id), {
            ...blank(),
            cpu: 0.5,
            memoryMb: 500,
            diskMb: 500,
            createdAt: 5_000_000,
          }),
        ),
      );
      expect(outcomes.filter(({ status }) => status === "fulfilled")).toHaveLength(10);
      const refused = outcomes.flatMap((one) => (one.status === "rejected" ? [one.reason as unknown] : []));
      const code = limit === "creates_per_minute" ? "rate_limited" : "quota_exceeded";
      for (const error of refused) expect(error).toMatchObject({ code, details: { limit } });
      const record = await accounts.own(scopeOf(id));
      expect((await accounts.usage(record, 5_000_001)).sandboxes).toBe(10);
    });

    test("lets 3 of 20 that wake at once past the limit, and all where there is none", async () => {
      const sleepers = async (id: string): Promise<SandboxRecord[]> =>
        await Promise.all(
          Array.from({ length: 20 }, async () => {
            let record = await sandboxes.insert(scopeOf(id), blank());
            for (const state of ["running", "hibernating", "hibernated"] as const)
              record = (await sandboxes.advance(record, state)) ?? record;
            return record;
          }),
        );
      const wake = async (id: string): Promise<string[]> => {
        const records = await sleepers(id);
        await accounts.setLimits(operator, id, {
          limits: id === free ? {} : { sandboxes_awake: 3 },
          tenantLimits: {},
        });
        const outcomes = await Promise.allSettled(records.map((record) => sandboxes.claimWake(record, 1)));
        return outcomes.map((one) => (one.status === "fulfilled" ? one.value.state : "refused")).toSorted();
      };
      const free = await limited({});
      expect(await wake(free)).toEqual(Array.from({ length: 20 }, () => "hibernated")); // nothing to count
      expect(await wake(await limited({}))).toEqual([
        ...Array.from({ length: 17 }, () => "refused"),
        ...Array.from({ length: 3 }, () => "waking"),
      ]);
    });

    test("counts a sandbox that several wake together once", async () => {
      const id = await limited({ sandboxes_awake: 1 });
      let record = await sandboxes.insert(scopeOf(id), blank());
      for (const state of ["running", "hibernating", "hibernated"] as const)
        record = (await sandboxes.advance(record, state)) ?? record;
      const claims = await Promise.all([1, 2, 3].map(() => sandboxes.claimWake(record, 1)));
      expect(claims.map(({ state }) => state).toSorted()).toEqual(["hibernated", "hibernated", "waking"]);
    });

    test("says when the next may be made", async () => {
      const id = await limited({ creates_per_minute: 2 });
      const make = async (createdAt: number): Promise<SandboxRecord> =>
        await sandboxes.insert(scopeOf(id), { ...blank(), createdAt });
      await make(1_000_000);
      await make(1_020_000);
      await expect(make(1_030_000)).rejects.toMatchObject({ details: { retry_after_seconds: 30 } });
      await make(1_060_000);
      await expect(make(1_060_001)).rejects.toMatchObject({ details: { retry_after_seconds: 20 } });
    });

    test("takes no snapshot and makes nothing persistent once the images are at their limit", async () => {
      const id = await limited({ image_bytes: 100 });
      await sandboxes.insert(scopeOf(id), { ...blank(), persistent: true });
      await snapshots.insert(scopeOf(id), { ...blankSnapshot(id), size_bytes: 100 });
      const refused = { code: "quota_exceeded", details: { limit: "image_bytes" } };
      await expect(snapshots.insert(scopeOf(id), blankSnapshot(id))).rejects.toMatchObject(refused);
      await expect(sandboxes.insert(scopeOf(id), { ...blank(), persistent: true })).rejects.toMatchObject(
        refused,
      );
      await sandboxes.insert(scopeOf(id), blank());
    });
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
    expect((await keys.list(scopeOf(name))).items).toEqual([{ ...made, revokedAt: 5, lastUsedAt: 8 }]);
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
    expect(await idempotency.purge(housekeeping, 1, 10)).toBe(0);
    expect(await idempotency.purge(housekeeping, 2, 10)).toBe(1);
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
