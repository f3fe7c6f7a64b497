import { sql } from "kysely";
import { afterEach, beforeEach, expect, test } from "vitest";
import { errorOf, eventually, World } from "./world.ts";

let world: World;
beforeEach(async () => {
  world = await World.start();
});
afterEach(async () => {
  await world[Symbol.asyncDispose]();
});

/** As a disk or a hand would spoil it. */
async function spoil(table: string, column: string, id: string): Promise<void> {
  const { db } = world.server.database;
  await sql`update ${sql.table(table)} set ${sql.ref(column)} = '{' where id = ${id}`.execute(db);
}

const ids = (items: unknown): string[] => (items as { id: string }[]).map(({ id }) => id);

test("a sandbox whose record cannot be read hides no other, is named in the list, and says why when asked for", async () => {
  const made: string[] = [];
  for (let count = 0; count < 5; count++) made.push((await world.sandbox()).id);
  const [spoilt = ""] = made.splice(2, 1);
  await spoil("sandboxes", "metadata", spoilt);
  const seen: string[] = [];
  const unreadable: string[] = [];
  let cursor = "";
  do {
    const page = await world.call("GET", `/v1/sandboxes?limit=1${cursor}`);
    expect(page.status).toBe(200);
    seen.push(...ids(page.body["items"]));
    unreadable.push(...((page.body["unreadable"] as string[] | undefined) ?? []));
    cursor = page.body["next_cursor"] === null ? "" : `&cursor=${page.body["next_cursor"] as string}`;
  } while (cursor !== "");
  expect(seen).toEqual(made.toReversed());
  expect(unreadable).toEqual([spoilt]);
  const alone = await world.call("GET", `/v1/sandboxes/${spoilt}`);
  expect(alone.status).toBe(500);
  expect(errorOf(alone).message).toContain(`the record of sandbox ${spoilt} cannot be read`);
  expect((await world.exec(made[0] ?? "", { cmd: "true" })).status).toBe(200);
});

test("nor does such a key, a webhook or an account", async () => {
  const operator = await world.newKey(["operator"]);
  await world.call("POST", "/v1/accounts", { key: operator, json: { id: "acme" } });
  const key = await world.call("POST", "/v1/keys", { json: { name: "spoilt" } });
  const webhooks: string[] = [];
  for (const path of ["a", "b"])
    webhooks.push(
      (await world.call("POST", "/v1/webhooks", { json: { url: `https://example.com/${path}` } })).body[
        "id"
      ] as string,
    );
  const [spoilt = "", whole = ""] = webhooks;
  await spoil("api_keys", "scopes", key.body["id"] as string);
  await spoil("webhooks", "types", spoilt);
  await spoil("accounts", "limits", "acme");
  for (const [path, id, other] of [
    ["/v1/keys", key.body["id"], undefined],
    ["/v1/webhooks", spoilt, whole],
    ["/v1/accounts", "acme", "default"],
  ] as const) {
    const list = await world.call("GET", path, { key: operator });
    expect(list, path).toMatchObject({ status: 200, body: { unreadable: [id] } });
    expect(ids(list.body["items"])).not.toContain(id);
    if (other !== undefined) expect(ids(list.body["items"])).toEqual([other]);
  }
  const used = await world.call("GET", "/v1/sandboxes", { key: key.body["key"] as string });
  expect(used.status).toBe(500); // it lets nobody in
});

test("a webhook that cannot be read keeps no event from the others", async () => {
  for (const path of ["a", "b"])
    await world.call("POST", "/v1/webhooks", { json: { url: `https://example.com/${path}` } });
  const list = await world.call("GET", "/v1/webhooks");
  const [whole = "", spoilt = ""] = ids(list.body["items"]);
  await spoil("webhooks", "types", spoilt);
  const before = await world.server.eventStore.lastSeq();
  await world.sandbox();
  await eventually(async () => {
    const { db } = world.server.database;
    const row = await db
      .selectFrom("webhooks")
      .select("after_seq")
      .where("id", "=", whole)
      .executeTakeFirst();
    return (row?.after_seq ?? 0) > before;
  });
});
