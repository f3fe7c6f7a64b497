import { once } from "node:events";
import { readFileSync } from "node:fs";
import type { IncomingMessage } from "node:http";
import { randomText, type Scope } from "@torpor/protocol";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { WebSocket } from "ws";
import { answerTo, CALLERS, type CallerName, ROUTES, type Row } from "./access-table.ts";
import { AccessWorld, type Names, neverExisted, OTHER_TENANT, partsOf, TENANT } from "./access-world.ts";

/** The committed reference, which another test holds equal to what the server serves. */
const reference = JSON.parse(
  readFileSync(new URL("../../../docs/openapi.json", import.meta.url), "utf8"),
) as { paths: Record<string, Record<string, { "x-scope"?: Scope }>> };

/** Scope of each route of the reference; of one open to all, null. */
const listed = new Map<string, Scope | null>();
for (const [path, methods] of Object.entries(reference.paths))
  for (const [method, operation] of Object.entries(methods))
    listed.set(`${method.toUpperCase()} ${path}`, operation["x-scope"] ?? null);
/** Terminals are WebSockets, of which OpenAPI knows nothing. */
listed.set("GET /v1/sandboxes/{id}/pty", "sandbox:exec");

/** A thousand requests, on a machine that is busy with other suites. */
const SLOW_MS = 120_000;

let access: AccessWorld;
beforeAll(async () => {
  access = await AccessWorld.start();
});
afterAll(async () => {
  await access[Symbol.asyncDispose]();
});

interface Seen {
  status: number;
  headers: Record<string, string>;
  text: string;
}

/** Headers that differ from one answer to the next. */
const PASSING_HEADERS = new Set(["date", "x-request-id", "connection", "keep-alive", "transfer-encoding"]);

async function ask(
  method: string,
  path: string,
  row: Row,
  names: Names,
  key: string | null,
  tenant = TENANT,
): Promise<Seen> {
  const target = path.replaceAll(/\{(\w+)\}/g, (_, part: string) => names[part] ?? "") + (row.query ?? "");
  if (row.webSocket === true) return await askSocket(target, key);
  const leave = new AbortController();
  const json = JSON.stringify(row.json)
    ?.replace("$unique", randomText(12))
    .replace("$tenant", tenant)
    .replace("$template_id", names["template_id"] ?? "");
  const response = await access.world.fetch(method, target, {
    key,
    signal: leave.signal,
    // One id for all: those the server makes are not all of one length, and so would answers not be.
    headers: { ...row.headers, "x-request-id": "matrix" },
    ...(json === undefined || method === "HEAD" ? {} : { json: JSON.parse(json) as unknown }),
    ...(row.body === undefined ? {} : { body: row.body }),
  });
  const endless = row.endless === true && response.status === 200;
  const text = endless ? "" : await response.text();
  leave.abort();
  const headers = Object.fromEntries([...response.headers].filter(([name]) => !PASSING_HEADERS.has(name)));
  return { status: response.status, headers, text };
}

async function askSocket(target: string, key: string | null): Promise<Seen> {
  const socket = new WebSocket(`${access.world.url.replace("http", "ws")}${target}`, {
    headers: { "x-request-id": "matrix", ...(key === null ? {} : { authorization: `Bearer ${key}` }) },
  });
  return await new Promise((resolve, reject) => {
    socket.once("error", reject);
    socket.once("open", () => {
      socket.terminate();
      resolve({ status: 101, headers: {}, text: "" });
    });
    socket.once("unexpected-response", (_request, response: IncomingMessage) => {
      let text = "";
      response.on("data", (chunk: Buffer) => (text += chunk.toString()));
      void once(response, "end").then(() => resolve({ status: response.statusCode ?? 0, headers: {}, text }));
    });
  });
}

/** What an answer says, whichever id was asked for. */
function withoutNames({ status, headers, text }: Seen, names: Names): unknown {
  let said = text;
  for (const name of Object.values(names)) said = said.replaceAll(name, "NAME");
  return { status, headers, said };
}

/** The server looks at machines by itself too, after what their host tells of them. */
const OWN_LOOK = /^GET \/v1\/machines\/[a-z0-9]+(\?settled_within_ms=\d+)?$/;

/** Nothing was asked of the host about any of these since it had had `before` requests. */
function expectUntouched(before: number, names: Names): void {
  const asked = access.world.host.requests.slice(before).filter((line) => !OWN_LOOK.test(line));
  for (const name of Object.values(names)) expect(asked.join("\n")).not.toContain(name);
}

/** Whether a route takes the verb there: one of that path, or one with a variable where the path has a word. */
function isRouted(method: string, path: string): boolean {
  return [...listed.keys()].some((route) => {
    const [verb, pattern = ""] = route.split(" ");
    const words = path.split("/");
    const parts = pattern.split("/");
    const fits = (part: string, at: number): boolean =>
      part === words[at] || (part.startsWith("{") && !(words[at] ?? "{").startsWith("{"));
    return verb === method && parts.length === words.length && parts.every(fits);
  });
}

test("the table and the reference name the same routes", () => {
  expect(Object.keys(ROUTES).toSorted()).toEqual([...listed.keys()].toSorted());
});

test(
  "a verb that a route does not have is refused, whoever asks and whatever is named",
  async () => {
    const verbs = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    for (const path of new Set(Object.keys(ROUTES).map((route) => route.split(" ")[1] ?? ""))) {
      if (path.includes("/ports/")) continue; // programs in a sandbox take any
      const names = await access.makeThings(path, { kind: "owned" });
      const [first] = partsOf(path);
      const unknown = first === undefined ? names : { ...names, [first]: neverExisted(names[first] ?? "") };
      const isSocket = ROUTES[`GET ${path}`]?.webSocket === true; // no route at all to what is no upgrade
      const before = access.world.host.requests.length;
      for (const verb of verbs.filter((method) => !isRouted(method, path)))
        for (const caller of ["other account", "none"] as const) {
          const key = await access.keyOf(caller, "admin");
          const [there, missing] = [
            await ask(verb, path, { kind: "owned" }, names, key),
            await ask(verb, path, { kind: "owned" }, unknown, key),
          ];
          expect(there.status, `${verb} ${path} by ${caller}`).toBe(isSocket ? 404 : 405);
          expect(withoutNames(there, names)).toEqual(withoutNames(missing, unknown));
        }
      expectUntouched(before, names);
    }
  },
  SLOW_MS,
);

const cases = Object.entries(ROUTES).flatMap(([route, row]) => {
  const [method = "", path = ""] = route.split(" ");
  const scope = listed.get(route) ?? null;
  const asked = { method, path, scope, row };
  // HEAD is answered wherever GET is.
  return method === "GET" && row.webSocket !== true ? [asked, { ...asked, method: "HEAD" }] : [asked];
});

describe.each(cases)("$method $path", ({ method, path, scope, row }) => {
  const expected = (caller: CallerName): number => {
    const answer = answerTo(caller, row.kind);
    return answer === "ok" ? (row.ok ?? 200) : answer;
  };
  const mayNot = CALLERS.filter((caller) => answerTo(caller, row.kind) !== "ok");

  test("who may not gets the documented refusal, and nothing happens", async () => {
    const names = await access.makeThings(path, row);
    const before = access.world.host.requests.length;
    const got: Record<string, number> = {};
    for (const caller of mayNot)
      got[caller] = (await ask(method, path, row, names, await access.keyOf(caller, scope))).status;
    expect(got).toEqual(Object.fromEntries(mayNot.map((caller) => [caller, expected(caller)])));
    expectUntouched(before, names);
  });

  test("who may gets the documented answer", async () => {
    for (const caller of CALLERS) {
      if (mayNot.includes(caller)) continue;
      const names = await access.makeThings(path, row);
      const tenant = caller === "other tenant" || caller === "other account" ? OTHER_TENANT : TENANT;
      const seen = await ask(method, path, row, names, await access.keyOf(caller, scope), tenant);
      expect(seen.status, `${caller}: ${seen.text}`).toBe(expected(caller));
    }
  });

  const isNoneOf = CALLERS.filter((caller) => answerTo(caller, row.kind) === 404);
  if (isNoneOf.length > 0) {
    test("another's id and one that never existed get the same answer", async () => {
      const names = await access.makeThings(path, row);
      const [first = row.names ?? ""] = partsOf(path);
      const unknown = { ...names, [first]: neverExisted(names[first] ?? "") };
      // Any tenant is the account's to use, so that it has a share before it has anything else.
      const alsoNone = row.kind === "share" ? [] : (["account"] as const);
      for (const caller of [...isNoneOf, ...alsoNone]) {
        const key = await access.keyOf(caller, scope);
        const missing = await ask(method, path, row, unknown, key);
        expect(missing.status, `${caller}: ${missing.text}`).toBe(404);
        if (caller === "account") continue;
        const foreign = await ask(method, path, row, names, key);
        expect(withoutNames(foreign, names)).toEqual(withoutNames(missing, unknown));
      }
    });
  }

  if (row.kind === "scoped" && method === "GET") {
    test("a list holds nothing of another's", async () => {
      const names: Names = {};
      for (const part of ["{id}", "{snapshot_id}", "{webhook_id}", "{key_id}"])
        Object.assign(names, await access.makeThings(part, { kind: "owned" }));
      for (const caller of ["other tenant", "other account"] as const) {
        const seen = await ask(method, path, row, {}, await access.keyOf(caller, scope));
        for (const name of Object.values(names)) expect(seen.text).not.toContain(name);
        expect(seen.text).not.toContain("acme");
      }
    });
  }
});
