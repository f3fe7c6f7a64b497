import { assert as assertProperty, asyncProperty, constantFrom } from "fast-check";
import { describe, expect, test } from "vitest";
import { canTransition, randomText, SANDBOX_STATES, type SandboxState } from "@torpor/protocol";
import { HostScope, ServerScope, TenantScope } from "../src/auth/tenant-scope.ts";
import { hashApiKey, newApiKey } from "../src/auth/authenticator.ts";
import { idempotencySlot } from "../src/store/idempotency-store.ts";
import { EventStore, type EventWriter } from "../src/store/event-store.ts";
import { KeptQueries } from "../src/store/kept-queries.ts";
import { LedgerStore, type LedgerWriter, sha256 } from "../src/store/ledger-store.ts";
import { openDatabase } from "../src/store/open-database.ts";
import type { SandboxRecord } from "../src/store/sandbox-record.ts";
import { SandboxStore } from "../src/store/sandbox-store.ts";
import { type NewSnapshot, type SnapshotRecord } from "../src/store/snapshot-store.ts";
import { TemplateStore } from "../src/store/template-store.ts";
import { ledgerOf } from "./ledger-world.ts";
import { account, blank, blankSnapshot, DATABASE_KINDS, scopeOf, useStores } from "./stores.ts";

const housekeeping = ServerScope.forHousekeeping();

describe.each(DATABASE_KINDS)("the store on %s", (kind) => {
  const store = useStores(kind);

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
    let record = await store.sandboxes.insert(scope, blank());
    for (const next of way[state] ?? []) record = (await store.sandboxes.advance(record, next)) ?? record;
    expect(record.state).toBe(state);
    return record;
  }

  test("gives back what was inserted, numbers as numbers and JSON as values", async () => {
    const scope = scopeOf(account());
    const inserted = await store.sandboxes.insert(scope, blank());
    const found = await store.sandboxes.find(scope, inserted.id);
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
      await store.snapshots.insert(scopeOf(name), { ...blankSnapshot(name), created_at: now, ...more });
    const made = await make();
    expect(await store.snapshots.find(scopeOf(name), made.id, now)).toBeUndefined();
    expect(await store.snapshots.finish(made, { sizeBytes: 5_000_000_000, generation: 3 })).toMatchObject({
      sizeBytes: 5_000_000_000,
      generation: 3,
      cpu: 0.5,
    });
    expect(await store.snapshots.find(scopeOf(name, "t"), made.id, now)).toMatchObject({ id: made.id });
    expect(await store.snapshots.find(scopeOf(name, "u"), made.id, now)).toBeUndefined();
    expect(await store.snapshots.find(scopeOf(account()), made.id, now)).toBeUndefined();
    const short = await make({ expires_at: now + 10, created_at: now + 1 });
    const fork = await make({ kind: "fork" });
    for (const one of [short, fork]) await store.snapshots.finish(one, { sizeBytes: 1, generation: 1 });
    const all = await store.snapshots.list(scopeOf(name), { limit: 1, now });
    expect(all.items.map(({ id }) => id)).toEqual([short.id]);
    const rest = await store.snapshots.list(scopeOf(name), { limit: 5, now, cursor: all.nextCursor ?? "" });
    expect(rest).toMatchObject({ items: [{ id: made.id }], nextCursor: null });
    expect((await store.snapshots.list(scopeOf(name), { limit: 5, now, name: "other" })).items).toEqual([]);
    expect(await store.snapshots.find(scopeOf(name), short.id, now + 10)).toBeUndefined();
    const left = async (at: number, madeBefore: number): Promise<string[]> =>
      (await store.snapshots.leftovers(housekeeping, at, madeBefore, 100))
        .filter((one) => one.account === name)
        .map(({ id }) => id)
        .sort();
    expect(await left(now, now)).toEqual([]);
    expect(await left(now + 10, now)).toEqual([short.id]);
    expect(await left(now, now + 1)).toEqual([fork.id]);
    await store.snapshots.markDeleting(made);
    expect(await store.snapshots.find(scopeOf(name), made.id, now)).toBeUndefined();
    expect(await left(now, now)).toEqual([made.id]);
    await store.snapshots.remove(made, "system:test");
    expect(await left(now, now)).toEqual([]);
  });

  test("the image of a built template is left over once no build names it", async () => {
    const name = account();
    const now = 1_700_000_000_000;
    const templates = new TemplateStore(store.database);
    const image = await store.snapshots.insert(scopeOf(name), {
      ...blankSnapshot(name),
      kind: "template",
      created_at: now,
    });
    await store.snapshots.finish(image, { sizeBytes: 1, generation: 1 });
    const left = async (madeBefore: number): Promise<string[]> =>
      (await store.snapshots.leftovers(housekeeping, now, madeBefore, 100))
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
    const templates = new TemplateStore(store.database);
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
      return (await store.sandboxes.insert(scope, { ...blank(), e2b })).id;
    };
    const mine = [await made("My-Tpl"), await made("my-tpl:v1"), await made("tpl123")];
    for (const other of ["my-tpl2", "my_tpl", "base", null]) await made(other);
    const found = async (references: string[]): Promise<string[]> => {
      const page = await store.sandboxes.list(scope, { states: [], metadata: {}, limit: 50, references });
      return page.items.map(({ id }) => id).sort();
    };
    expect(await found(["tpl123", "my-tpl"])).toEqual(mine.sort());
    expect(await found(["nothing"])).toEqual([]);
  });

  test("gives a session's name to one sandbox, however many ask", async () => {
    const name = { account: account(), tenant: "t", key: "chat 42" };
    const rows = await Promise.all(
      Array.from({ length: 12 }, (_, index) => store.sessions.findOrClaim(name, `s${index}`, index)),
    );
    expect(new Set(rows.map((row) => row.sandbox_id)).size).toBe(1);
    const [row] = rows;
    if (row === undefined) throw new Error("no row");
    expect((await store.sessions.findOrClaim({ ...name, tenant: "u" }, "other", 1)).sandbox_id).toBe("other");
    const won = await Promise.all(
      Array.from({ length: 5 }, (_, index) => store.sessions.replace(row, `n${index}`, 1)),
    );
    expect(won.filter(Boolean)).toHaveLength(1);
    await store.sessions.release(name, row.sandbox_id);
    const now = await store.sessions.findOrClaim(name, "late", 2);
    expect(now.sandbox_id).toMatch(/^n/);
    expect(await store.sessions.purge(housekeeping, 0, 100)).toBe(0);
    expect(await store.sessions.purge(housekeeping, 10, 100)).toBeGreaterThanOrEqual(1);
    expect((await store.sessions.findOrClaim(name, "late", 2)).sandbox_id).toBe("late");
  });

  test("takes an id once", async () => {
    const scope = scopeOf(account());
    const sandbox = blank();
    await store.sandboxes.insert(scope, sandbox);
    await expect(store.sandboxes.insert(scope, sandbox)).rejects.toThrow();
  });

  test("hides what is another account's, tenant's or host's", async () => {
    const name = account();
    const { id } = await store.sandboxes.insert(scopeOf(name), blank());
    expect(await store.sandboxes.find(scopeOf(name, "t"), id)).toBeDefined();
    expect(await store.sandboxes.find(scopeOf(name, "u"), id)).toBeUndefined();
    expect(await store.sandboxes.find(scopeOf(account()), id)).toBeUndefined();
    expect(await store.ofHosts.find(HostScope.fromHostLink("h"), id)).toBeDefined();
    expect(await store.ofHosts.find(HostScope.fromHostLink("other"), id)).toBeUndefined();
    expect(
      (await store.sandboxes.list(scopeOf(name, "u"), { states: [], metadata: {}, limit: 10 })).items,
    ).toEqual([]);
    await expect(store.sandboxes.insert(scopeOf(name, "u"), blank())).rejects.toThrow(/bound to tenant u/);
  });

  test("moves states by the table and no other way", async () => {
    const scope = scopeOf(account());
    await assertProperty(
      asyncProperty(constantFrom(...SANDBOX_STATES), constantFrom(...SANDBOX_STATES), async (from, to) => {
        const record = await inState(scope, from);
        if (canTransition(from, to)) expect((await store.sandboxes.advance(record, to))?.state).toBe(to);
        else
          await expect(store.sandboxes.advance(record, to)).rejects.toThrow(
            `cannot go from ${from} to ${to}`,
          );
      }),
      { numRuns: 60 },
    );
  });

  test("lets one of many racing movers win, and tells the others", async () => {
    const scope = scopeOf(account());
    const record = await inState(scope, "running");
    const results = await Promise.all(
      Array.from({ length: 12 }, (_, index) =>
        store.sandboxes.advance(record, "destroying", { reason: `r${index}` }),
      ),
    );
    const winners = results.filter((result) => result !== undefined);
    expect(winners).toHaveLength(1);
    expect((await store.sandboxes.find(scope, record.id))?.reason).toBe(winners[0]?.reason);
    expect(await store.sandboxes.advance(record, "pausing")).toBeUndefined();
  });

  test("keeps what changes together with a state", async () => {
    const scope = scopeOf(account());
    const record = await store.sandboxes.insert(scope, blank());
    const attestation = {
      generation: 1,
      steps: [{ name: "clock", outcome: "done" as const }],
      complete: true,
    };
    const running = await store.sandboxes.advance(record, "running", {
      driver: "gvisor",
      attestation,
      startedAt: 5,
      expiresAt: null,
    });
    expect(running).toMatchObject({ driver: "gvisor", attestation, startedAt: 5, expiresAt: null });
    const noted = await store.sandboxes.note(running ?? record, {
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
    expect(await store.sandboxes.advance(running ?? record, "destroying")).toBeUndefined();
    const ended = await store.sandboxes.advance(noted ?? record, "destroying");
    await store.sandboxes.advance(ended ?? record, "destroyed", { endedAt: 9, reason: "oom" });
    expect(await store.sandboxes.note(noted ?? record, { expiresAt: 78 })).toBeUndefined();
    expect(await store.sandboxes.find(scope, record.id)).toMatchObject({
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
      ids.push((await store.sandboxes.insert(scope, blank({ createdAt: 1_000 + Math.floor(index / 2) }))).id);
    const seen: string[] = [];
    let cursor: string | null = null;
    do {
      const page: { items: SandboxRecord[]; nextCursor: string | null } = await store.sandboxes.list(scope, {
        states: [],
        metadata: {},
        limit: 3,
        ...(cursor === null ? {} : { cursor }),
      });
      seen.push(...page.items.map(({ id }) => id));
      cursor = page.nextCursor;
      await store.sandboxes.insert(scope, blank({ createdAt: 9_999 }));
    } while (cursor !== null);
    expect(seen.toSorted()).toEqual(ids.toSorted());
  });

  test("filters by metadata whatever characters are in it", async () => {
    const scope = scopeOf(account());
    const metadata = { 'a"b': "x'y", "c.d": "%_\\", é: "ü", "{": "}" };
    const { id } = await store.sandboxes.insert(scope, blank({ metadata }));
    await store.sandboxes.insert(scope, blank({ metadata: { 'a"b': "other" } }));
    for (const [key, value] of Object.entries(metadata)) {
      const page = await store.sandboxes.list(scope, {
        states: ["creating"],
        metadata: { [key]: value },
        limit: 10,
        template: "base",
        tenant: "t",
      });
      expect(page.items.map((item) => item.id)).toEqual([id]);
    }
    expect(
      (await store.sandboxes.list(scope, { states: [], metadata: { ...metadata, more: "1" }, limit: 10 }))
        .items,
    ).toEqual([]);
  });

  test("several servers make one chain of the ledger, also where one's write is undone or another's is not known to it", async () => {
    const scope = scopeOf(account());
    const others = new SandboxStore(store.database);
    for (const each of [store.sandboxes, others, others, store.sandboxes, store.sandboxes])
      await each.insert(scope, blank());
    const failing: EventWriter = {
      append: () => Promise.reject(new Error("the disk is full")),
      committed: () => {},
    };
    const ledger = new LedgerStore(store.database);
    const undone: LedgerWriter = {
      append: async (transaction, drafts) => {
        await ledger.append(transaction, drafts);
        throw new Error("undone");
      },
    };
    await expect(new SandboxStore(store.database, failing).insert(scope, blank())).rejects.toThrow(
      "disk is full",
    );
    await expect(new SandboxStore(store.database, undefined, undone).insert(scope, blank())).rejects.toThrow(
      "undone",
    );
    const writer = new SandboxStore(store.database, undefined, ledger); // whose last word was undone
    await writer.insert(scope, blank());
    await Promise.all([writer, store.sandboxes, others, writer].map((each) => each.insert(scope, blank())));
    const { head, lines } = await ledgerOf(store.database);
    let prev = head.ledger;
    for (const [at, { seq, hash, entry }] of lines.entries()) {
      expect(JSON.parse(entry)).toMatchObject({ seq: at + 1, prev });
      expect([seq, hash]).toEqual([at + 1, sha256(entry)]);
      prev = hash;
    }
    expect(head).toMatchObject({ seq: lines.length, hash: prev });
  });

  test("the event of a create is told once its record is on the disk, also when the store is closed meanwhile", async () => {
    const other = await openDatabase(store.location);
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
    const byId = (id: string) => () =>
      store.database.db.selectFrom("accounts").select("id").where("id", "=", id);
    expect((await queries.run(store.database.db, "one", ["default"], byId("default"))).rows).toEqual([
      { id: "default" },
    ]);
    expect((await queries.run(store.database.db, "one", ["nobody"], byId("nobody"))).rows).toEqual([]);
    await expect(queries.run(store.database.db, "two", ["x", "y"], byId("x"))).rejects.toThrow(
      "other parameters",
    );
    await expect(queries.run(store.database.db, "two", ["y"], byId("x"))).rejects.toThrow("other parameters");
  });

  test("records activity forwards only and purges the longest ended first, in batches", async () => {
    const scope = scopeOf(account());
    const record = await store.sandboxes.insert(scope, blank());
    await store.sandboxes.touch(record, record.lastActivityAt + 5);
    await store.sandboxes.touch(record, record.lastActivityAt + 1);
    expect((await store.sandboxes.find(scope, record.id))?.lastActivityAt).toBe(record.lastActivityAt + 5);
    const ended: string[] = [];
    for (const endedAt of [1, 2, 3]) {
      const one = await inState(scope, "destroying");
      ended.push((await store.sandboxes.advance(one, "destroyed", { endedAt }))?.id ?? "");
    }
    expect(await store.sandboxes.purgeEnded(housekeeping, 3, 1)).toBe(1);
    expect(await store.sandboxes.find(scope, ended[0] ?? "")).toBeUndefined();
    while ((await store.sandboxes.purgeEnded(housekeeping, 3, 100)) > 0);
    expect(await store.sandboxes.find(scope, ended[1] ?? "")).toBeUndefined();
    expect(await store.sandboxes.find(scope, ended[2] ?? "")).toBeDefined();
    expect(
      (await store.ofHosts.live(HostScope.fromHostLink("h"))).records.some(({ id }) => id === ended[2]),
    ).toBe(false);
    expect(
      (await store.sandboxes.countByState(housekeeping)).find(({ state }) => state === "destroyed")?.count,
    ).toBeGreaterThan(0);
  });

  test("finds keys by hash alone, revokes once and within the scope", async () => {
    const name = account();
    const key = newApiKey();
    const made = await store.keys.insert({
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
    expect(await store.keys.findByHash(hashApiKey(key))).toEqual(made);
    expect(await store.keys.findByHash(hashApiKey(newApiKey()))).toBeUndefined();
    expect(await store.keys.revoke(scopeOf(name, "u"), made.id, 5)).toBeUndefined();
    expect(await store.keys.revoke(scopeOf(name), made.id, 5)).toMatchObject({ revokedAt: 5 });
    expect(await store.keys.revoke(scopeOf(name), made.id, 6)).toMatchObject({ revokedAt: 5 });
    await store.keys.markUsed(made, 8);
    expect((await store.keys.list(scopeOf(name))).items).toEqual([{ ...made, revokedAt: 5, lastUsedAt: 8 }]);
  });

  test("gives an idempotency slot to one of many, and lets one take it over from a dead owner", async () => {
    const slot = idempotencySlot(scopeOf(account()), "POST /x", "k");
    const claims = await Promise.all(
      Array.from({ length: 10 }, (_, index) =>
        store.idempotency.claim(slot, "hash", `owner${index}`, 1, "first"),
      ),
    );
    expect(claims.filter((claim) => claim === "claimed")).toHaveLength(1);
    const row = await store.idempotency.find(slot);
    expect(row).toMatchObject({ body_hash: "hash", progress: "first", status: null });
    if (row === undefined) throw new Error("no row");
    const takers = await Promise.all(
      Array.from({ length: 5 }, (_, index) => store.idempotency.takeOver(row, `taker${index}`, 2)),
    );
    expect(takers.filter(Boolean)).toHaveLength(1);
    await store.idempotency.noteProgress(slot, "second");
    await store.idempotency.heartbeat((await store.idempotency.find(slot))?.owner ?? "", 3);
    expect(await store.idempotency.find(slot)).toMatchObject({ progress: "second", heartbeat_at: 3 });
    await store.idempotency.finish(slot, 201, '{"a":1}');
    const done = await store.idempotency.find(slot);
    expect(done).toMatchObject({ status: 201, body: '{"a":1}' });
    expect(await store.idempotency.takeOver(done ?? row, "late", 4)).toBe(false);
    expect(await store.idempotency.purge(housekeeping, 1, 10)).toBe(0);
    expect(await store.idempotency.purge(housekeeping, 2, 10)).toBe(1);
    expect(await store.idempotency.claim(slot, "hash", "again", 5, null)).toBe("claimed");
    await store.idempotency.release(slot);
    expect(await store.idempotency.find(slot)).toBeUndefined();
  });

  test("opens again with everything in it, and migrates nothing twice", async () => {
    const scope = scopeOf(account());
    const { id } = await store.sandboxes.insert(scope, blank());
    const second = await openDatabase(store.location);
    expect(await new SandboxStore(second).find(scope, id)).toBeDefined();
    await second.close();
  });
});
