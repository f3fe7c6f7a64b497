import { once } from "node:events";
import { createPublicKey, verify } from "node:crypto";
import { join } from "node:path";
import Sqlite from "better-sqlite3";
import { expect, test } from "vitest";
import { WebSocket } from "ws";
import {
  checkpointText,
  type LedgerCheckpoint,
  type LedgerHead,
  type LedgerLine,
  type ShownLedgerEntry,
} from "@torpor/protocol";
import { audit, auditOf, ledgerOf } from "./ledger-world.ts";
import { eventually, World } from "./world.ts";

async function entries(world: World, query = "", key?: string): Promise<ShownLedgerEntry[]> {
  const options = key === undefined ? {} : { key };
  const reply = await world.call("GET", `/v1/ledger${query}`, options);
  expect(reply.status).toBe(200);
  return reply.body["items"] as ShownLedgerEntry[];
}

/** What happened to a sandbox, oldest first, without the ids of machines. */
async function story(world: World, id: string): Promise<string[]> {
  return (await entries(world, `?sandbox_id=${id}&limit=200`))
    .reverse()
    .map(({ action, resources, reason, generation }) => {
      const things = resources.map(({ kind, number, source }) =>
        [kind, number, source].filter((part) => part !== undefined).join(" "),
      );
      return `${action} ${things.join(", ")}: ${reason}, generation ${generation}`;
    });
}

/** Some of everything: three tenants, sleep, snapshots, forks, ends. */
async function lives(world: World): Promise<{ acme: string; fork: string; destroyed: string }> {
  const make = async (tenant: string, more: Record<string, unknown> = {}): Promise<string> =>
    (await world.sandbox({ template: "base", tenant, ...more })).id;
  const acme = await make("acme");
  const destroyed = await make("globex");
  await make("initech");
  for (const verb of ["hibernate", "wake"]) await world.call("POST", `/v1/sandboxes/${acme}/${verb}`);
  const snapshot = await world.call("POST", `/v1/sandboxes/${acme}/snapshots`, { json: {} });
  await make("acme", { from_snapshot: snapshot.body["id"] });
  const forked = await world.call("POST", `/v1/sandboxes/${acme}/fork`, { json: { count: 2 } });
  const [child] = forked.body["children"] as { sandbox: { id: string } }[];
  await world.call("DELETE", `/v1/sandboxes/${destroyed}`);
  await world.call("DELETE", `/v1/snapshots/${String(snapshot.body["id"])}`);
  return { acme, fork: child?.sandbox.id ?? "", destroyed };
}

test("tells a sandbox's life: what it was given, what it gave back, by whom and why", async () => {
  await using world = await World.start();
  const { acme, fork, destroyed } = await lives(world);
  expect((await story(world, acme)).filter((line) => !line.includes("snapshot"))).toEqual([
    "bind sandbox: create, generation 1",
    "bind machine 1 pool, address: create, generation 1",
    "release machine, address: hibernated, generation 1",
    "bind image: hibernated, generation 1",
    "bind machine 2 image, address: wake, generation 2",
    "release image: consumed, generation 2",
  ]);
  expect((await story(world, acme)).filter((line) => line.includes("snapshot"))).toEqual([
    "bind snapshot: snapshot, generation 2",
    "bind snapshot: fork, generation 2",
    "release snapshot: deleted, generation 2",
    "release snapshot: deleted, generation 2",
  ]);
  expect(await story(world, fork)).toEqual([
    "bind sandbox: create, generation 1",
    "bind machine 1 snapshot, address: restore, generation 1",
  ]);
  expect(await story(world, destroyed)).toEqual([
    "bind sandbox: create, generation 1",
    "bind machine 1 pool, address: create, generation 1",
    "release machine, address, sandbox: user, generation 1",
  ]);
  const actors = new Set((await entries(world, "?limit=200")).map(({ actor }) => actor));
  expect([...actors]).toEqual([expect.stringMatching(/^key_/)]);
  const verdict = await auditOf(world.server.database);
  expect(verdict).toMatchObject({
    findings: [],
    ok: true,
    tenants: 3,
    bound: { sandboxes: 6, machines: 7, poolMembers: 3, snapshots: 2, images: 1 },
    held: { sandboxes: 5, machines: 5, addresses: 5, snapshots: 0, images: 0 },
  });
});

test("says what the host did by itself, also while the server was away", async () => {
  await using world = await World.start();
  const { id } = await world.sandbox({ template: "base", tenant: "acme" });
  await world.host.move(id, "hibernate", { silent: true });
  await world.host.move(id, "wake", { silent: true });
  await world.host.move(id, "hibernate", { silent: true });
  await world.restart();
  await eventually(async () => (await story(world, id)).length >= 7);
  expect((await story(world, id)).slice(2)).toEqual([
    "release machine, address: hibernated, generation 1",
    "bind image: hibernated, generation 2",
    "bind machine 2 image, address: wake, generation 2",
    "release machine, address: hibernated, generation 2",
    "release image: consumed, generation 2",
    "bind image: hibernated, generation 2",
  ]);
  const [newest] = await entries(world, `?sandbox_id=${id}`);
  expect(newest?.actor).toBe("system:host");
  world.host.end(id, "ttl_expired");
  await eventually(
    async () => (await story(world, id)).at(-1)?.startsWith("release image, sandbox") === true,
  );
  expect(await auditOf(world.server.database)).toMatchObject({ findings: [], held: { sandboxes: 0 } });
});

test("says that an address was given back before it says who has it next", async () => {
  await using world = await World.start({ watch: { reconcileEveryMs: 600_000, newbornGraceMs: 600_000 } });
  const first = await world.sandbox({ template: "base", tenant: "acme" });
  world.host.end(first.id, "idle", { silent: true }); // its address is free again, and the server does not know
  const second = await world.sandbox({ template: "base", tenant: "globex" });
  const machineOf = (id: string) => world.host.machines.get(id)?.machine.incarnations[0];
  expect(machineOf(second.id)?.address).toBe(machineOf(first.id)?.address);
  expect(await auditOf(world.server.database)).toMatchObject({ findings: [], ok: true });
});

test("finds two that have one address, and a machine that was given twice", async () => {
  await using world = await World.start();
  const first = await world.sandbox({ template: "base", tenant: "acme" });
  const stolen = world.host.machines.get(first.id)?.machine.incarnations[0];
  if (stolen === undefined) throw new Error("the first has no machine");
  world.host.nextIncarnation = { id: stolen.id, address: stolen.address };
  await world.sandbox({ template: "base", tenant: "globex" });
  const { ok, findings } = await auditOf(world.server.database);
  expect(ok).toBe(false);
  expect(findings.map(({ message }) => message)).toEqual([
    expect.stringContaining(`binds machine ${stolen.id}, which has served sandbox ${first.id} before`),
    expect.stringContaining(`while sandbox ${first.id} still held it`),
  ]);
});

test("shows each tenant its own, and the whole to the operator alone", async () => {
  await using world = await World.start();
  const { acme, destroyed } = await lives(world);
  const key = await world.newKey(["sandbox:read"], "acme");
  const seen = await entries(world, "?limit=200", key);
  expect(seen.length).toBeGreaterThan(5);
  expect(new Set(seen.map(({ tenant }) => tenant))).toEqual(new Set(["acme"]));
  expect(await entries(world, `?sandbox_id=${destroyed}`, key)).toEqual([]);
  expect(await entries(world, "?tenant=globex", key)).toEqual([]);
  const pages: number[] = [];
  for (let cursor: string | null = ""; cursor !== null;) {
    const reply = await world.call("GET", `/v1/ledger?sandbox_id=${acme}&limit=3${cursor}`);
    pages.push(...(reply.body["items"] as ShownLedgerEntry[]).map(({ seq }) => seq));
    const next = reply.body["next_cursor"] as string | null;
    cursor = next === null ? null : `&cursor=${next}`;
  }
  expect(pages).toEqual((await entries(world, `?sandbox_id=${acme}&limit=200`)).map(({ seq }) => seq));
  expect((await world.call("GET", "/v1/ledger?cursor=x")).status).toBe(400);
  for (const path of ["/v1/ledger/export", "/v1/ledger/checkpoint"]) {
    expect((await world.call("GET", path, { key })).status).toBe(403);
    expect((await world.call("GET", path, { key: await world.newKey(["admin"]) })).status).toBe(403);
  }
});

test("is exported whole, with a checkpoint that anybody can check", async () => {
  await using world = await World.start();
  await lives(world);
  const operator = await world.newKey(["operator"]);
  const text = await (await world.fetch("GET", "/v1/ledger/export", { key: operator })).text();
  const [head, ...lines] = text
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line) as unknown);
  const reply = await world.call("GET", "/v1/ledger/checkpoint", { key: operator });
  const checkpoint = reply.body as unknown as LedgerCheckpoint;
  const signature = Buffer.from(checkpoint.signature, "base64");
  const signed = Buffer.from(checkpointText(checkpoint));
  expect(verify(null, signed, createPublicKey(checkpoint.public_key), signature)).toBe(true);
  expect(checkpoint).toMatchObject(head as LedgerHead);
  expect(audit(lines as LedgerLine[], head as LedgerHead, [checkpoint])).toMatchObject({ findings: [] });
});

test("finds every entry that is changed, dropped, doubled, swapped, filed elsewhere or cut off, on the rows themselves", async () => {
  await using world = await World.start();
  await lives(world);
  const { database } = world.server;
  const { head } = await ledgerOf(database);
  const file = new Sqlite(join(world.directory, "server.sqlite"));
  const rows = file.prepare("select * from ledger order by seq").all() as (LedgerLine & { entry: string })[];
  expect(rows.length).toBeGreaterThan(15);
  const put = file.prepare(
    "insert into ledger (seq, hash, account, tenant, sandbox_id, entry) values (@seq, @hash, @account, @tenant, @sandbox_id, @entry)",
  );
  const setHead = file.prepare("update ledger_head set seq = ?, hash = ?");
  /** Whether an audit of these rows fails; against the head, or, when that was tampered with too, a checkpoint. */
  const isFound = async (tampered: readonly LedgerLine[], tamperedHead?: LedgerHead): Promise<boolean> => {
    file.exec("delete from ledger");
    for (const row of tampered) put.run(row);
    if (tamperedHead !== undefined) setHead.run(tamperedHead.seq, tamperedHead.hash);
    const now = await ledgerOf(database);
    const verdict = audit(now.lines, now.head, tamperedHead === undefined ? [] : [head]);
    setHead.run(head.seq, head.hash);
    return !verdict.ok;
  };
  expect(await isFound(rows)).toBe(false);
  for (const [index, row] of rows.entries()) {
    const others = (changed: Partial<LedgerLine>): LedgerLine[] => rows.with(index, { ...row, ...changed });
    const tenant = row.entry.replace(/"tenant":"[a-z]+"/, '"tenant":"intruder"');
    expect(tenant).not.toBe(row.entry);
    const forged = audit([{ ...row, entry: tenant }]).lastHash; // with a hash of its own, as a clever one would
    const at = (text: string): string => text.replace(/"at":"2/, '"at":"1');
    const next = rows[index + 1];
    const last = rows[index - 1];
    const attempts: Record<string, () => Promise<boolean>> = {
      "its text changed": () => isFound(others({ entry: at(row.entry) })),
      "its text and hash changed": () => isFound(others({ entry: tenant, hash: forged })),
      "its hash changed": () => isFound(others({ hash: forged })),
      "filed under another tenant": () => isFound(others({ tenant: "intruder" })),
      "filed under another account": () => isFound(others({ account: "intruder" })),
      "filed under another sandbox": () => isFound(others({ sandbox_id: "intruder" })),
      dropped: () => isFound(rows.toSpliced(index, 1)),
      "dropped and the rest moved up": () =>
        isFound(rows.toSpliced(index, 1).map((line, place) => ({ ...line, seq: place + 1 }))),
      doubled: () =>
        isFound(rows.toSpliced(index, 0, row).map((line, place) => ({ ...line, seq: place + 1 }))),
      "swapped with the next": () =>
        next === undefined
          ? Promise.resolve(true)
          : isFound(rows.with(index, { ...next, seq: row.seq }).with(index + 1, { ...row, seq: next.seq })),
      "cut off from here": () => isFound(rows.slice(0, index)),
      "cut off from here, and the head with it": () =>
        isFound(rows.slice(0, index), {
          ledger: head.ledger,
          seq: index,
          hash: last?.hash ?? head.ledger,
        }),
    };
    for (const [attempt, found] of Object.entries(attempts))
      expect(await found(), `entry ${row.seq} ${attempt}`).toBe(true);
  }
  file.close();
});

/** Denials, as "reason of route by key: times". */
async function denials(world: World, query = "", key?: string): Promise<string[]> {
  return (await entries(world, `?limit=200${query}`, key))
    .filter(({ action }) => action === "deny")
    .map(({ reason, route, count, tenant }) => `${tenant}: ${reason} ${route} x${count}`)
    .toSorted();
}

/** The status with which a WebSocket is refused. */
async function upgradeStatus(url: string, key: string): Promise<number> {
  const socket = new WebSocket(url.replace("http", "ws"), { headers: { authorization: `Bearer ${key}` } });
  socket.on("error", () => {}); // the status says it
  const [, response] = (await once(socket, "unexpected-response")) as [unknown, { statusCode: number }];
  socket.terminate();
  return response.statusCode;
}

test("enters what was refused: under its owner, who sees it, and not for the one who must not learn of it", async () => {
  await using world = await World.start();
  const { id } = await world.sandbox({ template: "base", tenant: "acme" });
  const taken = await world.call("POST", `/v1/sandboxes/${id}/snapshots`, { json: {} });
  const globex = await world.newKey(["sandbox:read", "sandbox:write"], "globex");
  const acme = await world.newKey(["sandbox:read"], "acme");
  const expired = await world.newKey(["sandbox:read"], "acme", Date.now() - 1_000);
  for (let times = 0; times < 5; times += 1)
    expect((await world.call("GET", `/v1/sandboxes/${id}`, { key: globex })).status).toBe(404);
  await world.call("GET", `/v1/sandboxes/s${"a".repeat(25)}`, { key: globex });
  await world.call("GET", `/v1/snapshots/${String(taken.body["id"])}`, { key: globex });
  const json = { from_snapshot: taken.body["id"] };
  expect((await world.call("POST", "/v1/sandboxes", { key: globex, json })).status).toBe(404);
  expect((await world.call("DELETE", `/v1/sandboxes/${id}`, { key: acme })).status).toBe(403);
  expect((await world.call("GET", "/v1/sandboxes", { key: expired })).status).toBe(401);
  expect((await world.call("GET", "/v1/sandboxes", { key: `tp_${"x".repeat(40)}` })).status).toBe(401);
  const shell = await world.newKey(["sandbox:exec"], "globex");
  const own = await world.sandbox({ template: "base", tenant: "globex" });
  const published = await world.call("POST", `/v1/sandboxes/${id}/ports/80/url`, { json: {} });
  const unpublish = `/v1/sandboxes/${own.id}/urls/${String(published.body["id"])}`;
  expect((await world.call("DELETE", unpublish, { key: shell })).status).toBe(404);
  for (const path of ["pty", "ports/80/"])
    expect(await upgradeStatus(`${world.url}/v1/sandboxes/${id}/${path}`, shell)).toBe(404);
  await world.restart(); // which writes what is still counted
  expect(await denials(world)).toEqual([
    "acme: foreign_id DELETE /v1/sandboxes/{id}/urls/{url_id} x1",
    "acme: foreign_id GET /v1/sandboxes/{id} x5",
    "acme: foreign_id GET /v1/sandboxes/{id}/ports/{port}/{path*} x1",
    "acme: foreign_id GET /v1/sandboxes/{id}/pty x1",
    "acme: foreign_id GET /v1/snapshots/{snapshot_id} x1",
    "acme: foreign_id POST /v1/sandboxes x1",
    "acme: key_expired GET /v1/sandboxes x1",
    "acme: permission_denied DELETE /v1/sandboxes/{id} x1",
  ]);
  expect(await denials(world, "", globex)).toEqual([]);
  expect(await denials(world, "", acme)).toHaveLength(8);
  expect(await auditOf(world.server.database)).toMatchObject({ findings: [], denials: 12 });
});

test("is not filled by whoever is refused again and again", async () => {
  await using world = await World.start();
  const key = await world.newKey(["sandbox:read"], "acme");
  const routes = ["pause", "resume", "hibernate", "wake", "fork", "snapshots", "promote"];
  for (let times = 0; times < 20; times += 1)
    for (const route of routes)
      await world.call("POST", `/v1/sandboxes/s${"b".repeat(25)}/${route}`, { key, json: {} });
  await world.restart();
  const found = await denials(world);
  expect(found.length).toBeLessThanOrEqual(2 * routes.length);
  expect(await auditOf(world.server.database)).toMatchObject({ denials: 20 * routes.length, ok: true });
});
