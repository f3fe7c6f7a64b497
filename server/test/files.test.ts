import { spawnSync } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { readdirSync } from "node:fs";
import { once } from "node:events";
import { request } from "node:http";
import { gzipSync, gunzipSync } from "node:zlib";
import { afterAll, beforeAll, expect, test } from "vitest";
import { CodedError } from "@torpor/protocol";
import { errorOf, eventually, World } from "./world.ts";

let world: World;
let root: string;
let guestRoot: string;

beforeAll(async () => {
  world = await World.start();
  const { id } = await world.sandbox();
  root = `/v1/sandboxes/${id}/fs`;
  guestRoot = world.guest(id).root;
});
afterAll(async () => {
  await world[Symbol.asyncDispose]();
});

test("bytes come back as they went in, with the entry as the answer, also into folders that did not exist", async () => {
  const bytes = randomBytes(3_000_000);
  const written = await world.call("PUT", `${root}?path=/made/on/the/way.bin`, { body: bytes });
  expect(written).toMatchObject({
    status: 200,
    body: {
      name: "way.bin",
      path: "/made/on/the/way.bin",
      type: "file",
      size: bytes.length,
      owner: "user",
      symlink_target: null,
    },
  });
  const response = await world.fetch("GET", `${root}?path=/made/on/the/way.bin`);
  expect(response.headers.get("content-length")).toBe(String(bytes.length));
  expect(response.headers.get("content-type")).toBe("application/octet-stream");
  expect(response.headers.get("x-content-type-options")).toBe("nosniff");
  expect(
    createHash("sha256")
      .update(Buffer.from(await response.arrayBuffer()))
      .digest("hex"),
  ).toBe(createHash("sha256").update(bytes).digest("hex"));
});

test("an empty file and a file below the home folder", async () => {
  expect((await world.call("PUT", `${root}?path=~/empty`, { body: "" })).body).toMatchObject({
    size: 0,
    type: "file",
  });
  expect(await world.call("GET", `${root}?path=~/empty`)).toMatchObject({ status: 200, text: "" });
});

test("ranges are honoured and bad ones refused", async () => {
  await world.call("PUT", `${root}?path=/digits`, { body: "0123456789" });
  const part = await world.call("GET", `${root}?path=/digits`, { headers: { range: "bytes=2-4" } });
  expect(part).toMatchObject({ status: 206, text: "234" });
  expect(part.headers.get("content-range")).toBe("bytes 2-4/10");
  expect(await world.call("GET", `${root}?path=/digits`, { headers: { range: "bytes=99-" } })).toMatchObject({
    status: 416,
    body: { error: { code: "range_not_satisfiable" } },
  });
});

test("a mode is set by the guest's chmod, and a wrong one refused", async () => {
  expect((await world.call("PUT", `${root}?path=/tool&mode=9`, { body: "x" })).status).toBe(400);
});

test("folders are made, listed, looked at, moved and removed", async () => {
  expect(await world.call("POST", `${root}/dir?path=/one/two`)).toMatchObject({
    status: 200,
    body: { type: "dir", path: "/one/two" },
  });
  expect((await world.call("POST", `${root}/dir?path=/one/two`)).status).toBe(200);
  await world.call("PUT", `${root}?path=/one/two/file`, { body: "x" });
  expect((await world.call("GET", `${root}/dir?path=/one/two`)).body).toMatchObject({
    entries: [{ name: "file", type: "file", size: 1, mode: 0o644 }],
  });
  expect(
    (await world.call("POST", `${root}/move`, { json: { source: "/one/two", destination: "/three/four" } }))
      .body,
  ).toMatchObject({ path: "/three/four" });
  expect((await world.call("GET", `${root}/stat?path=/one/two`)).status).toBe(404);
  expect(
    (await world.call("POST", `${root}/move`, { json: { source: "/none", destination: "/x" } })).status,
  ).toBe(404);
  expect(await world.call("DELETE", `${root}?path=/three`)).toMatchObject({
    status: 200,
    body: { removed: true },
  });
  expect(await world.call("DELETE", `${root}?path=/three`)).toMatchObject({
    status: 404,
    body: { error: { code: "file_not_found" } },
  });
});

test("an archive goes in and out, plain and gzipped, and broken gzip is refused", async () => {
  const tar = spawnSync("tar", ["-c", "-C", guestRoot, "--transform", "s,^,packed/,", "digits"]).stdout;
  expect((await world.call("PUT", `${root}/archive?path=/from-tar`, { body: tar })).status).toBe(200);
  expect((await world.call("GET", `${root}?path=/from-tar/packed/digits`)).text).toBe("0123456789");
  expect(
    (await world.call("PUT", `${root}/archive?path=/from-gzip&format=tar.gz`, { body: gzipSync(tar) }))
      .status,
  ).toBe(200);
  expect((await world.call("GET", `${root}?path=/from-gzip/packed/digits`)).text).toBe("0123456789");
  const out = await world.fetch("GET", `${root}/archive?path=/from-tar&format=tar.gz`);
  expect(out.headers.get("content-type")).toBe("application/gzip");
  const listed = spawnSync("tar", ["-t"], { input: gunzipSync(Buffer.from(await out.arrayBuffer())) });
  expect(String(listed.stdout)).toContain("packed/digits");
  const broken = await world.call("PUT", `${root}/archive?path=/broken&format=tar.gz`, {
    body: randomBytes(200_000),
  });
  expect(broken.status).toBe(400);
  expect(errorOf(broken).message).toContain("not gzip");
  expect((await world.call("GET", `${root}/archive?path=/nowhere`)).status).toBe(404);
});

test("a client that leaves in mid-upload leaves the old file whole and nothing beside it", async () => {
  await world.call("PUT", `${root}?path=/kept/file`, { body: "old" });
  const { hostname, port } = new URL(world.url);
  const upload = request({
    hostname,
    port,
    method: "PUT",
    path: `${root}?path=/kept/file`,
    headers: { authorization: `Bearer ${world.adminKey}`, "content-length": 50_000_000 },
  });
  upload.on("error", () => {});
  upload.write(Buffer.alloc(5_000_000));
  await eventually(() => readdirSync(`${guestRoot}/kept`).includes("file.part"));
  upload.destroy();
  await eventually(() => !readdirSync(`${guestRoot}/kept`).includes("file.part"));
  expect((await world.call("GET", `${root}?path=/kept/file`)).text).toBe("old");
});

test("a client that leaves in mid-download frees the way to the host", async () => {
  await world.call("PUT", `${root}?path=/large`, { body: Buffer.alloc(20_000_000) });
  const leave = new AbortController();
  const response = await world.fetch("GET", `${root}?path=/large`, { signal: leave.signal });
  await response.body?.getReader().read();
  leave.abort();
  expect((await world.call("GET", `${root}/stat?path=/large`)).body["size"]).toBe(20_000_000);
});

test("a host that breaks off a download breaks the client's too: no short file looks whole", async () => {
  world.host.fault({
    on: /\/files\?path=%2Flarge/,
    kind: "error",
    error: new CodedError("no_space", "disk full"),
  });
  expect(await world.call("GET", `${root}?path=/large`)).toMatchObject({
    status: 507,
    body: { error: { code: "no_space" } },
  });
  const response = await world.fetch("GET", `${root}?path=/large`);
  const reader = response.body?.getReader();
  await reader?.read();
  await world.host.goAway();
  await expect(
    (async () => {
      for (;;) if ((await reader?.read())?.done !== false) return;
    })(),
  ).rejects.toThrow();
  await world.host.listen();
});

test("an upload that is refused at once is answered before it has been sent", async () => {
  const { hostname, port } = new URL(world.url);
  const upload = request({
    hostname,
    port,
    method: "PUT",
    path: `/v1/sandboxes/${"q".repeat(26)}/fs?path=/x`,
    headers: { authorization: `Bearer ${world.adminKey}`, "content-length": 1_000_000_000 },
  });
  upload.on("error", () => {}); // the rest is cut off, as it should be
  upload.write(Buffer.alloc(100_000));
  const [answer] = (await once(upload, "response")) as [{ statusCode: number; resume(): void }];
  expect(answer.statusCode).toBe(404);
  answer.resume();
  upload.destroy();
});

test("changes of a watched folder come as lines until the client leaves", async () => {
  const leave = new AbortController();
  const response = await world.fetch("GET", `${root}/watch?path=/&recursive=true`, { signal: leave.signal });
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  while (!text.includes("keepalive")) text += (await reader?.read())?.value ?? "";
  expect(
    text
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line) as unknown),
  ).toEqual([{ type: "create", name: "a.txt" }, { type: "keepalive" }]);
  leave.abort();
  expect((await world.call("GET", `${root}/watch?path=/nowhere`)).status).toBe(404);
});

test("logs, templates and builds are passed on", async () => {
  const id = root.split("/")[3];
  expect((await world.call("GET", `/v1/sandboxes/${id}/logs`)).text).toBe("torpor-guest: ready\n");
  expect((await world.call("GET", "/v1/templates")).body["items"]).toHaveLength(2);
  expect((await world.call("GET", "/v1/templates/base")).body).toMatchObject({ name: "base", hash: "h1" });
  expect((await world.call("GET", "/v1/templates/none")).status).toBe(404);
  const build = await world.call("POST", "/v1/templates/base/build");
  expect(
    build.text
      .trim()
      .split("\n")
      .map((line) => (JSON.parse(line) as { type: string }).type),
  ).toEqual(["progress", "done"]);
  expect((await world.call("POST", "/v1/templates/none/build")).status).toBe(404);
  expect((await world.call("DELETE", "/v1/templates/code-interpreter")).status).toBe(204);
});
