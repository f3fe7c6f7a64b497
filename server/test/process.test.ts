import {
  chmodSync,
  chownSync,
  lchownSync,
  linkSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { Scope } from "@torpor/base";
import { FakeHost } from "./fake-host.ts";
import { type ServerProcess, startServerProcess } from "./server-process.ts";

const MIB = 1024 * 1024;
/** Starting TypeScript sources takes seconds on a machine that is busy with other suites. */
const SLOW_MS = 120_000;
let scope: Scope;
let host: FakeHost;
let stateDir: string;

beforeEach(async () => {
  scope = new Scope();
  host = await FakeHost.start();
  scope.defer(() => host.close());
  stateDir = mkdtempSync(join(tmpdir(), "torpor-state-"));
  chmodSync(stateDir, 0o711); // as `up` makes it: the server's user passes through
  scope.defer(() => rmSync(stateDir, { recursive: true, force: true }));
});
afterEach(async () => {
  await scope.close();
});

function start(env: Record<string, string> = {}): Promise<ServerProcess> {
  return startServerProcess(scope, host, stateDir, env);
}

const apiKey = (): string => readFileSync(join(stateDir, "api-key"), "utf8").trim();

async function ask(
  server: ServerProcess,
  method: string,
  path: string,
  json?: unknown,
): Promise<{ status: number; body: Record<string, unknown> }> {
  const response = await fetch(`${server.url}${path}`, {
    method,
    headers: { authorization: `Bearer ${apiKey()}`, "content-type": "application/json" },
    ...(json === undefined ? {} : { body: JSON.stringify(json) }),
  });
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
}

test(
  "the first start writes an admin key for its owner alone, later ones keep it, and SIGTERM ends with 0",
  async () => {
    const first = await start();
    const key = apiKey();
    expect(key).toMatch(/^tp_[A-Za-z0-9]{40}$/);
    expect(statSync(join(stateDir, "api-key")).mode & 0o777).toBe(0o600);
    expect(JSON.parse(readFileSync(join(stateDir, "run/server.json"), "utf8"))).toMatchObject({
      pid: first.pid,
      url: first.url,
      start_time: expect.stringMatching(/^\d+$/),
    });
    const made = await ask(first, "POST", "/v1/sandboxes", { template: "base" });
    expect(made.status).toBe(201);
    const startedAt = Date.now();
    first.child.kill("SIGTERM");
    expect(await first.exited).toEqual({ code: 0, signal: null });
    expect(Date.now() - startedAt).toBeLessThan(5_000);
    expect(first.stderr()).not.toContain(key);
    const second = await start();
    expect(apiKey()).toBe(key);
    expect(await ask(second, "GET", `/v1/sandboxes/${String(made.body["id"])}`)).toMatchObject({
      status: 200,
      body: { state: "running" },
    });
  },
  SLOW_MS,
);

test(
  "a second server of the same state folder refuses to start and says which runs; a dead one's file does not stop it",
  async () => {
    const first = await start();
    await expect(startServerProcess(scope, host, stateDir)).rejects.toThrow(
      new RegExp(`runs already as pid ${first.pid}`),
    );
    first.child.kill("SIGKILL");
    await first.exited;
    await start();
  },
  SLOW_MS,
);

test(
  "problems of the configuration are told all at once",
  async () => {
    await expect(
      startServerProcess(scope, host, stateDir, {
        TORPOR_LISTEN: "nowhere",
        TORPOR_HOST_TOKEN: "",
        TORPOR_RUN_AS: "root",
      }),
    ).rejects.toThrow(
      /TORPOR_LISTEN: must be host:port[^]*TORPOR_HOST_TOKEN: is required[^]*TORPOR_RUN_AS: must be uid:gid/,
    );
  },
  SLOW_MS,
);

test(
  "a key file that holds something else stops the start instead of being overwritten",
  async () => {
    writeFileSync(join(stateDir, "api-key"), "my shopping list");
    await expect(startServerProcess(scope, host, stateDir)).rejects.toThrow(/does not hold a Torpor API key/);
  },
  SLOW_MS,
);

test.runIf(process.getuid?.() === 0)(
  "as root (left out for other users, who cannot change theirs) it becomes the user it is told to and goes on writing its store",
  async () => {
    const server = await start({ TORPOR_RUN_AS: "65534:65534" });
    const status = readFileSync(`/proc/${server.pid}/status`, "utf8");
    expect(status).toMatch(/^Uid:\s+65534\s+65534\s+65534\s+65534$/m);
    expect(status).toMatch(/^Gid:\s+65534\s+65534\s+65534\s+65534$/m);
    expect(status).toMatch(/^Groups:\s*$/m);
    expect((await ask(server, "POST", "/v1/keys", { name: "still writes" })).status).toBe(201);
  },
);

test.runIf(process.getuid?.() === 0)(
  "as root it follows nothing that was planted in the folder of the user it becomes: neither links nor other names of root's files",
  async () => {
    const folder = join(stateDir, "server");
    mkdirSync(folder, { mode: 0o700 });
    chownSync(folder, 65_534, 65_534);
    const roots = join(stateDir, "roots");
    mkdirSync(roots, { mode: 0o700 });
    writeFileSync(join(roots, "file"), "root's", { mode: 0o644 });
    linkSync(join(roots, "file"), join(folder, "another-name"));
    for (const [name, target] of [
      ["server.sqlite", "made"],
      ["ledger-key.pem", "key"],
    ] as const) {
      symlinkSync(join(roots, target), join(folder, name));
      lchownSync(join(folder, name), 65_534, 65_534);
    }
    await expect(startServerProcess(scope, host, stateDir, { TORPOR_RUN_AS: "65534:65534" })).rejects.toThrow(
      /the server ended with 1/,
    );
    expect(readdirSync(roots)).toEqual(["file"]);
    expect(statSync(join(roots, "file"))).toMatchObject({ uid: 0, gid: 0, mode: 0o100644 });
    expect(readFileSync(join(roots, "file"), "utf8")).toBe("root's");
    // With the links gone it serves, and what is left is still root's.
    for (const name of ["server.sqlite", "ledger-key.pem"]) rmSync(join(folder, name));
    await start({ TORPOR_RUN_AS: "65534:65534" });
    expect(statSync(join(folder, "another-name"))).toMatchObject({ uid: 0, gid: 0 });
    for (const name of ["server.sqlite", "uploads", "ledger-key.pem"])
      expect(lstatSync(join(folder, name)), name).toMatchObject({ uid: 65_534, gid: 65_534 });
  },
  SLOW_MS,
);

test(
  "creates that a kill -9 cut off are finished or undone by the next server",
  async () => {
    const first = await start();
    host.fault({ on: /^PUT/, kind: "delay", delayMs: 400, times: 10 });
    const asked = Array.from({ length: 20 }, () =>
      ask(first, "POST", "/v1/sandboxes", { template: "base" }).catch(() => undefined),
    );
    await new Promise((resolve) => setTimeout(resolve, 300));
    first.child.kill("SIGKILL");
    const answered = (await Promise.all(asked)).filter((answer) => answer !== undefined);
    const second = await start();
    const deadline = Date.now() + 10_000;
    for (;;) {
      const { items } = (await ask(second, "GET", "/v1/sandboxes?state=all&limit=100")).body as {
        items: { id: string; state: string }[];
      };
      const live = new Set(host.liveMachines());
      const agree =
        items.every(
          ({ id, state }) =>
            (state === "running" ? live.has(id) : state === "destroyed" && !live.has(id)) ||
            state === "creating",
        ) && [...live].every((id) => items.some((item) => item.id === id));
      const settled = items.every(({ state, id }) => state !== "creating" || !live.has(id));
      if (agree && settled) {
        // Whoever got an answer has a sandbox that works.
        for (const { body } of answered)
          expect(items.find(({ id }) => id === body["id"])?.state).toBe("running");
        return;
      }
      if (Date.now() > deadline)
        throw new Error(
          `records and machines disagree: ${JSON.stringify(items.map(({ id, state }) => [id, state, live.has(id)]))}`,
        );
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  },
  SLOW_MS,
);

test(
  "256 MiB up and down leave the server's memory flat",
  async () => {
    const server = await start();
    const { body } = await ask(server, "POST", "/v1/sandboxes", { template: "base" });
    const path = `/v1/sandboxes/${String(body["id"])}/fs?path=/large`;
    const { hostname, port } = new URL(server.url);
    const headers = { authorization: `Bearer ${apiKey()}` };
    const block = Buffer.alloc(MIB, "x");
    const upload = async (mebibytes: number): Promise<void> => {
      await new Promise<void>((resolve, reject) => {
        const sent = request(
          { hostname, port, path, method: "PUT", headers: { ...headers, "content-length": mebibytes * MIB } },
          (answer) => {
            answer.resume();
            answer.once("end", () =>
              answer.statusCode === 200 ? resolve() : reject(new Error(`answered ${answer.statusCode}`)),
            );
          },
        );
        sent.once("error", reject);
        void (async () => {
          for (let index = 0; index < mebibytes; index += 1)
            if (!sent.write(block)) await new Promise((go) => sent.once("drain", go));
          sent.end();
        })();
      });
    };
    const download = (): Promise<number> =>
      new Promise((resolve, reject) => {
        request({ hostname, port, path, headers }, (answer) => {
          let bytes = 0;
          answer.on("data", (chunk: Buffer) => (bytes += chunk.length));
          answer.once("end", () => resolve(bytes)).once("error", reject);
        })
          .once("error", reject)
          .end();
      });
    await upload(16); // the first one warms allocator and code up
    await download();
    const before = server.residentBytes();
    let peak = before;
    const watching = setInterval(() => (peak = Math.max(peak, server.residentBytes())), 50);
    try {
      await upload(256);
      expect(await download()).toBe(256 * MIB);
    } finally {
      clearInterval(watching);
    }
    expect(Math.round((peak - before) / MIB)).toBeLessThan(64);
  },
  SLOW_MS,
);
