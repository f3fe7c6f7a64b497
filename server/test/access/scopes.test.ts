import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { guarded } from "./guarded-deps.ts";

const root = fileURLToPath(new URL("../../..", import.meta.url));
const check = (checkout: string): { status: number | null; said: string } => {
  const { status, stdout, stderr } = spawnSync(
    process.execPath,
    [join(root, "bin/lib/check-scopes.mjs"), checkout],
    { encoding: "utf8" },
  );
  return { status, said: stdout + stderr };
};

test("what routes are given takes a capability in every function that is about somebody's things", () => {
  expect(guarded.every((holds) => holds)).toBe(true); // the compiler has checked it
});

test("scopes and records are made where rights are established, and nowhere else", () => {
  expect(check(root)).toMatchObject({ status: 0 });
});

describe("a violation is found", () => {
  let checkout: string;
  beforeEach(() => {
    checkout = mkdtempSync(join(tmpdir(), "torpor-scopes-"));
  });
  afterEach(() => rmSync(checkout, { recursive: true, force: true }));

  const write = (name: string, text: string): void => {
    const path = join(checkout, "server/src", name);
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, text);
  };

  test.each([
    ["routes/a.ts", "const s = TenantScope.fromVerifiedKey({ keyId, account: body.account, tenant: null });"],
    ["http/a.ts", "const s = OperatorScope.fromVerifiedKey(id);"],
    ["routes/a.ts", "await store.purge(ServerScope.forHousekeeping(), 1, 1);"],
    ["auth/authenticator.ts", "const s = ServerScope.fromVerifiedKey(id);"],
    ["sandbox/sandboxes.ts", "const s = HostScope.fromHostLink(hostId);"],
    ["routes/a.ts", "await client.deleteMachine(ReportedMachine.of(scope, call.param('id')), 'user');"],
    ["webhook/a.ts", "const guest = new GuestClient(client, machine);"],
    ["routes/a.ts", "const record = { id } as SandboxRecord;"],
    ["sandbox/a.ts", "const record = { id } as unknown as SnapshotRecord;"],
    ["http/a.ts", "const slot = { account, tenant, route, key } as IdempotencySlot;"],
    ["routes/a.ts", "const store = new SandboxStore(database, events);"],
    ["routes/a.ts", 'import { SandboxStore } from "../store/sandbox-store.ts";'],
    ["routes/a.ts", 'import { type SandboxRecord, decodeCursor } from "../store/page-cursor.ts";'],
    ["routes/a.ts", 'import { sql } from "kysely";'],
    ["routes/deep/a.ts", 'import { openDatabase } from "../../store/open-database.ts";'],
  ])("in %s: %s", (name, text) => {
    write(name, text);
    const { status, said } = check(checkout);
    expect(status).toBe(1);
    expect(said).toContain(`server/src/${name}`);
  });

  test("and what is right is not", () => {
    write("auth/authenticator.ts", "const s = TenantScope.fromVerifiedKey(identity);");
    write(
      "routes/a.ts",
      '// new SandboxStore()\nimport { type SandboxRecord, toSandbox } from "../store/sandbox-record.ts";',
    );
    write("store/sandbox-record.ts", "return record as SandboxRecord;");
    expect(check(checkout)).toEqual({
      status: 0,
      said: "3 files of the server: scopes are made by authentication alone\n",
    });
  });
});
