import { randomText } from "@torpor/protocol";
import type { KyselyPlugin, PluginTransformQueryArgs, RootOperationNode } from "kysely";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { isDeepStrictEqual } from "node:util";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { openDatabase } from "../../src/store/open-database.ts";
import { errorOf, type Reply, World } from "../world.ts";
import { AccessWorld, neverExisted, OTHER_TENANT, TENANT } from "./access-world.ts";

let access: AccessWorld;
/** Keys of two tenants of one account, and of another account with a tenant of the first one's name. */
let ours: string;
let theirs: string;
let strangers: string;
beforeAll(async () => {
  access = await AccessWorld.start();
  ours = await access.addKey({ scopes: ["admin"], tenant: TENANT });
  theirs = await access.addKey({ scopes: ["admin"], tenant: OTHER_TENANT });
  strangers = await access.addKey({ scopes: ["admin"], tenant: TENANT, account: "others" });
});
afterAll(async () => {
  await access[Symbol.asyncDispose]();
});

const call = (method: string, path: string, key: string, json?: unknown, headers = {}): Promise<Reply> =>
  access.world.call(method, path, { key, headers, ...(json === undefined ? {} : { json }) });
const idOf = (reply: Reply): string => {
  expect(reply.status, reply.text).toBeLessThan(300);
  return String(reply.body["id"]);
};

test("the same Idempotency-Key is another one in another tenant", async () => {
  const headers = { "idempotency-key": "shared" };
  const make = (key: string): Promise<Reply> =>
    call("POST", "/v1/sandboxes", key, { template: "base", name: "n" }, headers);
  const ids = [await make(ours), await make(theirs), await make(strangers)].map(idOf);
  expect(new Set(ids).size).toBe(3);
  expect(idOf(await make(ours))).toBe(ids[0]);
  // Nor does a clash of bodies tell that somebody else has used it.
  expect((await call("POST", "/v1/sandboxes", theirs, { template: "base" }, headers)).status).toBe(409);
  const fresh = { "idempotency-key": "used-by-one-alone" };
  expect((await call("POST", "/v1/sandboxes", ours, { template: "base" }, fresh)).status).toBe(201);
  expect((await call("POST", "/v1/sandboxes", theirs, { template: "base", name: "x" }, fresh)).status).toBe(
    201,
  );
});

test("one tenant's cursor in another's list shows the other's own things alone", async () => {
  for (const key of [ours, theirs, strangers])
    for (let count = 0; count < 3; count += 1) {
      const id = idOf(await call("POST", "/v1/sandboxes", key, { template: "base" }));
      idOf(await call("POST", `/v1/sandboxes/${id}/snapshots`, key, {}));
    }
  for (const list of ["/v1/sandboxes?state=all&limit=1", "/v1/snapshots?limit=1"]) {
    const cursor = String((await call("GET", list, ours)).body["next_cursor"]);
    const all = list.replace("limit=1", "limit=200");
    for (const key of [theirs, strangers]) {
      const own = (await call("GET", all, key)).body["items"] as { id: string }[];
      const page = (await call("GET", `${all}&cursor=${cursor}`, key)).body["items"] as { id: string }[];
      expect(page.every(({ id }) => own.some((mine) => mine.id === id))).toBe(true);
    }
  }
});

test("one tenant's place in the log, as Last-Event-ID, shows another its own events alone", async () => {
  const id = idOf(await call("POST", "/v1/sandboxes", ours, { template: "base" }));
  const mine = (await call("GET", `/v1/sandboxes/${id}/events?follow=false`, ours)).text;
  const [, first = ""] = /id: (evt_\d+)/.exec(mine) ?? [];
  for (const key of [theirs, strangers]) {
    const seen = await call("GET", "/v1/events?follow=false", key, undefined, { "last-event-id": first });
    expect(seen.status).toBe(200);
    expect(seen.text).not.toContain(id);
    expect(
      (await call("GET", `/v1/events?follow=false&after=oldest&tenant=${TENANT}`, theirs)).text,
    ).not.toContain(TENANT);
  }
});

test("a session key is each tenant's own", async () => {
  const open = (key: string): Promise<Reply> =>
    call("POST", "/v1/sessions", key, { key: "chat", template: "base" });
  const opened = [await open(ours), await open(theirs), await open(strangers)];
  const ids = opened.map(({ body }) => (body["sandbox"] as { id: string }).id);
  expect(new Set(ids).size).toBe(3);
  expect(
    (await call("POST", "/v1/sessions", theirs, { key: "chat", tenant: TENANT, template: "base" })).status,
  ).toBe(403);
});

describe("another's things named in a body", () => {
  test("a snapshot to start from is as one that never existed", async () => {
    const id = idOf(await call("POST", "/v1/sandboxes", ours, { template: "base" }));
    const snapshot = idOf(await call("POST", `/v1/sandboxes/${id}/snapshots`, ours, {}));
    const never = neverExisted(snapshot);
    for (const key of [theirs, strangers]) {
      for (const [route, extra] of [
        ["/v1/sandboxes", {}],
        ["/v1/sessions", { key: randomText(8) }],
      ] as const) {
        const from = (name: string): Promise<Reply> =>
          call("POST", route, key, { from_snapshot: name, ...extra });
        const [foreign, missing] = [await from(snapshot), await from(never)];
        const said = (reply: Reply): object => ({ ...errorOf(reply), request_id: "" });
        expect(foreign.status).toBe(404);
        expect(JSON.stringify(said(foreign)).replace(snapshot, "ID")).toBe(
          JSON.stringify(said(missing)).replace(never, "ID"),
        );
      }
    }
    // The account's own unbound key may, but only into the snapshot's tenant.
    const unbound = await access.addKey({ scopes: ["sandbox:write"] });
    expect((await call("POST", "/v1/sandboxes", unbound, { from_snapshot: snapshot })).body["tenant"]).toBe(
      TENANT,
    );
    const moved = await call("POST", "/v1/sandboxes", unbound, {
      from_snapshot: snapshot,
      tenant: OTHER_TENANT,
    });
    expect(moved.status).toBe(404);
  });

  test("a filter for another's sandbox finds nothing", async () => {
    const id = idOf(
      await call("POST", "/v1/sandboxes", ours, { template: "base", metadata: { secret: "s" } }),
    );
    idOf(await call("POST", `/v1/sandboxes/${id}/snapshots`, ours, { name: "named" }));
    for (const key of [theirs, strangers])
      for (const list of [
        `/v1/snapshots?sandbox_id=${id}`,
        "/v1/snapshots?name=named",
        "/v1/sandboxes?metadata.secret=s",
      ])
        expect((await call("GET", list, key)).body, list).toEqual({ items: [], next_cursor: null });
  });

  test("a tenant of another account's name is another tenant", async () => {
    const id = idOf(await call("POST", "/v1/sandboxes", strangers, { template: "base", tenant: TENANT }));
    expect((await call("GET", `/v1/sandboxes/${id}`, ours)).status).toBe(404);
    const listed = await call("GET", `/v1/sandboxes?tenant=${TENANT}&limit=200`, ours);
    expect(listed.text).not.toContain(id);
  });
});

/** Look-ups of each kind that are timed. */
const ROUNDS = 400;

/** What each statement of the store came to. */
class StatementCount implements KyselyPlugin {
  readonly answers: string[] = [];

  transformQuery({ node }: PluginTransformQueryArgs): RootOperationNode {
    return node; // not asked of a statement that was built before
  }

  transformResult({ result }: Parameters<KyselyPlugin["transformResult"]>[0]): Promise<typeof result> {
    this.answers.push(`${result.rows.length} rows, ${result.numAffectedRows ?? "none"} changed`);
    return Promise.resolve(result);
  }
}

describe("another's id costs what one that never existed costs", () => {
  let world: World;
  let directory: string;
  let count: StatementCount;
  let close: () => Promise<void>;
  let key: string;
  beforeAll(async () => {
    directory = mkdtempSync(join(tmpdir(), "torpor-statements-"));
    count = new StatementCount();
    const database = await openDatabase({ kind: "sqlite", path: join(directory, "server.sqlite") });
    close = () => database.close();
    world = await World.start({ database: { ...database, db: database.db.withPlugin(count) } });
    key = await world.newKey(["admin"], OTHER_TENANT);
  });
  afterAll(async () => {
    await world[Symbol.asyncDispose]();
    await close();
    rmSync(directory, { recursive: true, force: true });
  });

  test("the same statements of the store, and none of the host", async () => {
    const { id } = await world.sandbox({ template: "base", tenant: TENANT });
    await world.call("GET", "/v1/sandboxes", { key }); // its use is noted once
    for (const [method, path, json] of [
      ["GET", ""],
      ["DELETE", ""],
      ["GET", "/state"],
      ["POST", "/exec", { cmd: "true" }],
      ["POST", "/fork", {}],
      ["POST", "/snapshots", {}],
      ["POST", "/hibernate"],
      ["GET", "/fs?path=/x"],
    ] as const) {
      const cost = async (asked: string): Promise<string[]> => {
        const [statements, requests] = [count.answers.length, world.host.requests.length];
        const options = { key, ...(json === undefined ? {} : { json }) };
        expect((await world.call(method, `/v1/sandboxes/${asked}${path}`, options)).status).toBe(404);
        const reached = world.host.requests.slice(requests).filter((line) => !line.includes("/v1/events"));
        return [...count.answers.slice(statements), ...reached];
      };
      // What the server does by itself may come between once; a tell would show in each.
      let costs: { foreign: string[]; missing: string[] } | undefined;
      for (let tries = 0; tries < 3; tries += 1) {
        costs = { foreign: await cost(id), missing: await cost(neverExisted(id)) };
        if (isDeepStrictEqual(costs.foreign, costs.missing)) break;
      }
      expect(costs?.foreign, `${method} ${path}`).toEqual(costs?.missing);
    }
  });

  test("and the same time: medians of interleaved look-ups", async () => {
    const { id } = await world.sandbox({ template: "base", tenant: TENANT });
    const timed = async (asked: string): Promise<number> => {
      const startedAt = performance.now();
      await world.call("GET", `/v1/sandboxes/${asked}`, { key });
      return performance.now() - startedAt;
    };
    const medianMs = (values: number[]): number => values.toSorted((a, b) => a - b)[values.length >> 1] ?? 0;
    const measure = async (): Promise<{ foreignMs: number; missingMs: number }> => {
      const foreign: number[] = [];
      const missing: number[] = [];
      const never = Array.from({ length: ROUNDS }, () => neverExisted(id));
      for (const [round, unknown] of never.entries()) {
        // Each first every other time, so that neither always comes after the other.
        if (round % 2 === 0) foreign.push(await timed(id));
        missing.push(await timed(unknown));
        if (round % 2 === 1) foreign.push(await timed(id));
      }
      return { foreignMs: medianMs(foreign), missingMs: medianMs(missing) };
    };
    // A busy machine may spoil one measurement; a tell would show in each.
    let tells = "";
    for (let tries = 0; tries < 3; tries += 1) {
      const { foreignMs, missingMs } = await measure();
      tells = `foreign ${foreignMs.toFixed(3)} ms, never existed ${missingMs.toFixed(3)} ms`;
      if (Math.abs(foreignMs - missingMs) < Math.max(0.25 * missingMs, 0.2)) {
        process.stdout.write(`look-ups of ids, median of ${ROUNDS} each: ${tells}\n`);
        return;
      }
    }
    expect.fail(tells);
  });
});
