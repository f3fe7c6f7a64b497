import {
  AuthenticationError,
  InvalidArgumentError,
  RateLimitError,
  Sandbox as Sandbox251,
  SandboxError,
  SandboxNotFoundError,
} from "e2b";
import { Sandbox as Sandbox245 } from "e2b-2.45";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { e2bOptions, useInstance } from "../src/index.ts";

/** Their types differ where their wires do; what is used here is the same in both. */
const VERSIONS: { version: string; Sandbox: typeof Sandbox251 }[] = [
  { version: "2.51.0", Sandbox: Sandbox251 },
  { version: "2.45.0", Sandbox: Sandbox245 as unknown as typeof Sandbox251 },
];
const NOBODYS = "snobodyssandboxnobodyssan";

describe("what E2B's clients are refused", () => {
  const torpor = useInstance({ server: true });
  const options = () => e2bOptions(torpor());
  const raw = async (method: string, path: string, body?: unknown, headers: Record<string, string> = {}) => {
    const answer = await fetch(`${torpor().url}${path}`, {
      method,
      headers: { "x-api-key": torpor().apiKey, "content-type": "application/json", ...headers },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const text = await answer.text();
    return {
      status: answer.status,
      headers: answer.headers,
      body: text === "" ? undefined : JSON.parse(text),
    };
  };
  const create = (body: Record<string, unknown>) =>
    raw("POST", "/v2/sandboxes", { templateID: "base", ...body });

  describe.each(VERSIONS)("E2B's client $version", ({ version, Sandbox }) => {
    test("is told of a key that is not known", async () => {
      const attempt = Sandbox.create("base", { ...options(), apiKey: `e2b_${"0".repeat(40)}` });
      await expect(attempt).rejects.toThrow(/Unauthorized/);
    });

    test("is told of a template that is not there", async () => {
      await expect(Sandbox.create("no-such-template", options())).rejects.toThrow(/404.*no-such-template/);
    });

    test("is told of a sandbox that never was", async () => {
      expect(await Sandbox.kill(NOBODYS, options())).toBe(false);
      await expect(Sandbox.getInfo(NOBODYS, options())).rejects.toThrow(/not found|doesn't exist/i);
      await expect(Sandbox.connect(NOBODYS, options())).rejects.toThrow(/not found|doesn't exist/i);
      await expect(Sandbox.setTimeout(NOBODYS, 1_000, options())).rejects.toThrow(/not found|doesn't exist/i);
      await expect(Sandbox.pause(NOBODYS, options())).rejects.toThrow(/not found|doesn't exist/i);
      await expect(Sandbox.getMetrics(NOBODYS, options())).rejects.toThrow(/not found|doesn't exist/i);
    });

    test("is told of a timeout that no sandbox may have", async () => {
      await expect(Sandbox.create("base", { ...options(), timeoutMs: 90 * 24 * 3_600_000 })).rejects.toThrow(
        /400/,
      );
    });

    test(`${version} finds no volumes and no secrets`, async () => {
      expect((await raw("POST", "/volumes", { name: "x" })).body).toMatchObject({ code: 400 });
      expect((await raw("GET", "/secrets")).body).toMatchObject({ code: 400 });
    });
  });

  test("errors say code as a number, and are of the client's own kinds", async () => {
    await expect(Sandbox251.getInfo(NOBODYS, options())).rejects.toThrow(SandboxNotFoundError);
    await expect(Sandbox251.create("base", { ...options(), apiKey: "tp_wrong" })).rejects.toThrow(
      AuthenticationError,
    );
    expect(await raw("GET", `/sandboxes/${NOBODYS}`)).toMatchObject({
      status: 404,
      body: { code: 404, message: `Sandbox "${NOBODYS}" doesn't exist or you don't have access to it` },
    });
    expect(await raw("GET", "/sandboxes", undefined, { "x-api-key": "" })).toMatchObject({
      status: 401,
      body: { code: 401 },
    });
  });

  test.each([
    ["a timeout of nothing", { timeout: 0 }, /timeout/],
    ["a timeout that is no number", { timeout: "60" }, /timeout/],
    ["a template that is no text", { templateID: 7 }, /templateID/],
    ["metadata that is no text", { metadata: { a: 1 } }, /metadata/],
    ["a variable whose name no shell takes", { envVars: { "a-b": "x" } }, /env/],
    [
      "a resume by traffic without memory",
      { autoPause: true, autoPauseMemory: false, autoResume: { enabled: true } },
      /autoPauseMemory/,
    ],
    ["a pause without memory and no pause", { autoPauseMemory: false }, /autoPauseMemory/],
    ["a resume of what is killed", { autoResume: { enabled: true } }, /autoPause/],
    ["an MCP gateway", { mcp: { github: {} } }, /mcp is not supported/],
    ["cloud identities", { iam: { tokens: {} } }, /iam is not supported/],
    ["volumes", { volumeMounts: [{ name: "v", path: "/v" }] }, /volumeMounts is not supported/],
    ["ports that speak TLS", { network: { httpsPorts: [8443] } }, /httpsPorts is not supported/],
    ["headers put into requests", { network: { rules: { "a.example": [{}] } } }, /rules is not supported/],
    ["a proxy of one's own", { network: { egressProxy: { address: "x" } } }, /egressProxy is not supported/],
    ["allowed domains beside everything", { network: { allowOut: ["a.example"] } }, /ALL_TRAFFIC/],
    ["denied domains", { network: { denyOut: ["a.example"] } }, /denyOut/],
    [
      "exceptions from denied addresses",
      { network: { denyOut: ["1.1.1.0/24"], allowOut: ["1.1.1.1"] } },
      /allowOut/,
    ],
    ["addresses that are none", { network: { denyOut: ["1.2.3.4.5"] } }, /1\.2\.3\.4\.5/],
  ])("a create refuses %s, naming it", async (_what, body, message) => {
    const refused = await create(body);
    expect(refused).toMatchObject({ status: 400, body: { code: 400 } });
    expect(refused.body.message).toMatch(message);
  });

  test.each([
    ["a state that there is not", "?state=sleeping"],
    ["a page of nothing", "?limit=0"],
    ["a page of too many", "?limit=101"],
    ["a time that is none", "?startedAfter=yesterday"],
    ["an order that is none", "?order=up"],
    ["a token that is not its own", "?nextToken=x"],
    ["a template with a tag", "?template=base:v1"],
  ])("a list refuses %s", async (_what, query) => {
    expect(await raw("GET", `/v2/sandboxes${query}`)).toMatchObject({ status: 400, body: { code: 400 } });
  });

  test("a list of what nothing is made from is empty", async () => {
    expect(await raw("GET", "/v2/sandboxes?template=No%20Such")).toMatchObject({ status: 200, body: [] });
  });

  describe("a sandbox", () => {
    let sandbox: Sandbox251;
    beforeAll(async () => {
      sandbox = await Sandbox251.create("base", options());
    });
    afterAll(async () => {
      await sandbox.kill();
    });

    test("refuses a timeout of nothing, and keeps its own", async () => {
      const { endAt } = await sandbox.getInfo();
      expect(await raw("POST", `/sandboxes/${sandbox.sandboxId}/timeout`, { timeout: 0 })).toMatchObject({
        status: 400,
      });
      expect((await sandbox.getInfo()).endAt).toEqual(endAt);
    });

    test("is refreshed later and never sooner", async () => {
      const { endAt } = await sandbox.getInfo();
      const refresh = (duration: number) =>
        raw("POST", `/sandboxes/${sandbox.sandboxId}/refreshes`, { duration });
      expect((await refresh(20)).status).toBe(204);
      expect((await sandbox.getInfo()).endAt).toEqual(endAt);
      expect((await refresh(3_600)).status).toBe(204);
      expect((await sandbox.getInfo()).endAt.getTime()).toBeGreaterThan(endAt.getTime());
      expect((await refresh(3_601)).body).toMatchObject({ code: 400 });
    });

    test("that runs is not resumed, and one that is paused neither forked, nor copied, nor given time", async () => {
      const path = `/sandboxes/${sandbox.sandboxId}`;
      expect(await raw("POST", `${path}/resume`, { timeout: 60 })).toMatchObject({
        status: 409,
        body: { code: 409 },
      });
      await sandbox.pause();
      for (const [verb, body] of [
        ["fork", { count: 1 }],
        ["snapshots", {}],
        ["timeout", { timeout: 60 }],
        ["refreshes", { duration: 60 }],
        ["pause", {}],
      ] as const)
        expect((await raw("POST", `${path}/${verb}`, body)).body, verb).toMatchObject({ code: 409 });
      expect(await raw("POST", `${path}/resume`, { timeout: 60 })).toMatchObject({
        status: 201,
        body: { sandboxID: sandbox.sandboxId, clientID: "6532622b" },
      });
    });

    test("is forked into at least one and at most a hundred", async () => {
      for (const count of [0, 101])
        expect((await raw("POST", `/sandboxes/${sandbox.sandboxId}/fork`, { count })).body).toMatchObject({
          code: 400,
        });
    });

    test("shows what it may reach as it was said, and takes another policy", async () => {
      const path = `/sandboxes/${sandbox.sandboxId}`;
      const denied = { denyOut: ["0.0.0.0/0"], allowOut: ["*.example.com", "8.8.8.8"] };
      expect((await raw("PUT", `${path}/network`, denied)).status).toBe(204);
      expect((await raw("GET", path)).body).toMatchObject({
        allowInternetAccess: false,
        network: { allowOut: ["*.example.com", "8.8.8.8"], denyOut: ["0.0.0.0/0"] },
      });
      expect((await raw("PUT", `${path}/network`, { denyOut: ["8.8.8.0/24"] })).status).toBe(204);
      expect((await raw("GET", path)).body).toMatchObject({
        allowInternetAccess: true,
        network: { allowOut: [], denyOut: ["8.8.8.0/24"] },
      });
      expect((await raw("PUT", `${path}/network`, {})).status).toBe(204);
      expect((await raw("GET", path)).body).toMatchObject({ network: { denyOut: [] } });
      expect((await raw("PUT", `${path}/network`, { rules: { "*": [{}] } })).body).toMatchObject({
        code: 400,
      });
    });

    test("has a console, and no metrics of before", async () => {
      const path = `/sandboxes/${sandbox.sandboxId}`;
      const { logs } = (await raw("GET", `/v2${path}/logs?limit=5`)).body;
      expect(logs.length).toBeLessThanOrEqual(5);
      expect((await raw("GET", `${path}/logs`)).body).toMatchObject({ logs: expect.any(Array) });
      expect((await raw("GET", `${path}/metrics?end=1000`)).body).toEqual([]);
    });

    test("is told of by the older list too", async () => {
      const { body } = await raw("GET", "/sandboxes");
      expect(body.map((each: { sandboxID: string }) => each.sandboxID)).toContain(sandbox.sandboxId);
    });

    test("passes on what is wrong with a request to its agent", async () => {
      await expect(sandbox.files.list("/", { depth: 0 })).rejects.toThrow(InvalidArgumentError);
      await expect(sandbox.files.read("/no/such")).rejects.toThrow(/not exist|not found/i);
    });
  });

  test("a key that is bound to a tenant makes, sees and kills its own alone", async () => {
    const keyOf = async (tenant: string): Promise<string> => {
      const body = { name: tenant, tenant, scopes: ["sandbox:write", "sandbox:exec"] };
      return (await torpor().api.json<{ key: string }>("/v1/keys", { method: "POST", body })).key;
    };
    const [acme, globex] = await Promise.all(["acme", "globex"].map(keyOf));
    const of = (key: string | undefined) => ({ ...options(), apiKey: key ?? "" });
    const sandbox = await Sandbox251.create("base", of(acme));
    const listed = async (key: string | undefined): Promise<string[]> =>
      (await Sandbox251.list(of(key)).nextItems()).map(({ sandboxId }) => sandboxId);
    expect(await listed(acme)).toEqual([sandbox.sandboxId]);
    expect(await listed(globex)).toEqual([]);
    expect(await Sandbox251.kill(sandbox.sandboxId, of(globex))).toBe(false);
    await expect(Sandbox251.connect(sandbox.sandboxId, of(globex))).rejects.toThrow(SandboxNotFoundError);
    const { snapshotId } = await sandbox.createSnapshot();
    await expect(Sandbox251.create(snapshotId, of(globex))).rejects.toThrow(SandboxError);
    expect(await Sandbox251.deleteSnapshot(snapshotId, of(globex))).toBe(false);
    expect(await Sandbox251.deleteSnapshot(snapshotId, of(acme))).toBe(true);
    expect(await Sandbox251.kill(sandbox.sandboxId, of(acme))).toBe(true);
  });

  test("a tenant at its limit gets the error of a rate", async () => {
    const operator = await torpor().api.json<{ limits: unknown }>("/v1/account");
    expect(operator).toBeDefined();
    await torpor().api.json("/v1/accounts/default", { method: "PATCH", body: { limits: { sandboxes: 1 } } });
    const first = await Sandbox251.create("base", options());
    try {
      await expect(Sandbox251.create("base", options())).rejects.toThrow(RateLimitError);
    } finally {
      await torpor().api.json("/v1/accounts/default", {
        method: "PATCH",
        body: { limits: { sandboxes: null } },
      });
      await first.kill();
    }
  });
});
