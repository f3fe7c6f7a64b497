import { join } from "node:path";
import { randomBytes } from "node:crypto";
import { beforeAll, describe, expect, test } from "vitest";
import type { Sandbox } from "@torpor/protocol";
import { eventually } from "../src/eventually.ts";
import type { HttpClient } from "../src/http-client.ts";
import { filesThatHold, memoryFilesThatHold } from "../src/needle-search.ts";
import { poolFull } from "../src/pool-full.ts";
import { useInstance } from "../src/use-instance.ts";

/** Later sandboxes that are searched. */
const LATER = 100;
/** Of them, every so many is searched in the memory of its processes too, which takes longer. */
const IN_MEMORY_EVERY = 10;
/** At once. */
const WIDTH = 4;
/** Copies that wait when the marked ones are made and when the later ones are; how many more are found is up to the pace. */
const WAITING = 8;

const HALVES = [randomBytes(12).toString("hex"), randomBytes(12).toString("hex")] as const;
const CANARY = HALVES.join("");
/**
 * What whoever searches is told: the search must not find itself. With something around each half, which a heap that packs
 * strings of one size side by side would else put together.
 */
const [A, B] = HALVES.map((half) => `x${half}x`) as [string, string];

/** Where a sandbox can write, and what it is told; the template's own files are an image that is never written to. */
const SEARCH_FILES = `
A="\${A#x}"; A="\${A%x}"; B="\${B#x}"; B="\${B%x}"
pattern="[\${A%"\${A#?}"}]\${A#?}$B"
grep -raslE "$pattern" /home /root /tmp /var/tmp /var/log /run /dev/shm /workspace /etc /opt /srv 2>/dev/null
cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -aE "$pattern"
true`;

const SEARCH_MEMORY = `
import os, re
first, second = os.environ["A"][1:-1].encode(), os.environ["B"][1:-1].encode()
pattern = re.compile(b"[" + first[:1] + b"]" + first[1:] + second)
looked = 0
for pid in (name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()):
    try:
        maps = open(f"/proc/{pid}/maps").read().splitlines()
        memory = open(f"/proc/{pid}/mem", "rb", 0)
    except OSError:
        continue
    for line in maps:
        span, rights = line.split()[:2]
        start, end = (int(part, 16) for part in span.split("-"))
        if "r" not in rights or end - start > 1 << 28: continue
        try:
            memory.seek(start)
            data = memory.read(end - start)
        except (OSError, ValueError, OverflowError):
            continue
        looked += len(data)
        if pattern.search(data): print("FOUND in", pid, line)
print("looked at", looked)
`;

describe("what one tenant leaves behind", () => {
  const torpor = useInstance({ server: true, pool: WAITING, shells: 1 });

  async function post<T>(api: HttpClient, path: string, body: unknown = {}): Promise<T> {
    return await api.json<T>(path, { method: "POST", body });
  }

  async function exec(id: string, cmd: string, env: Record<string, string> = {}): Promise<string> {
    const body = { cmd, env, user: "root", timeout_seconds: 60 };
    const result = await post<{ stdout: string; stderr: string; exit_code: number }>(
      torpor().api,
      `/v1/sandboxes/${id}/exec`,
      body,
    );
    if (result.exit_code !== 0) throw new Error(`${cmd.slice(0, 80)}: ${JSON.stringify(result)}`);
    return result.stdout;
  }

  /** A sandbox of the writer's with the canary in its files, its memory, its environment and its secrets. */
  async function marked(): Promise<string> {
    const { id } = await post<Sandbox>(torpor().api, "/v1/sandboxes", {
      template: "base",
      tenant: "writer",
      ttl_seconds: 600,
      env: { CANARY: CANARY },
      secrets: { SECRET_CANARY: `secret-${CANARY}` },
    });
    const write = ["/home/user", "/tmp", "/dev/shm", "/root"].map((dir) => `echo "$CANARY" > ${dir}/canary`);
    await exec(
      id,
      `${write.join("; ")}; nohup python3 -c 'import os, time; kept = [os.environ["CANARY"] * 1000]; time.sleep(600)' >/dev/null 2>&1 &`,
    );
    return id;
  }

  const destroy = (id: string): Promise<unknown> =>
    torpor().api.json(`/v1/sandboxes/${id}`, { method: "DELETE" });

  beforeAll(async () => {
    const { api } = torpor();
    await poolFull(torpor(), "base", { ready: WAITING });
    const [plain, slept, photographed, forked] = await Promise.all([marked(), marked(), marked(), marked()]);
    // The searches find it where it is: they would find it later.
    expect(await exec(plain, SEARCH_FILES, { A, B })).toContain("/home/user/canary");
    expect(await exec(plain, `python3 - <<'EOF'\n${SEARCH_MEMORY}\nEOF`, { A, B })).toContain("FOUND");
    expect(memoryFilesThatHold(torpor().stateDir, CANARY).found.length).toBeGreaterThan(0);
    await post(api, `/v1/sandboxes/${slept}/hibernate`);
    expect(filesThatHold(join(torpor().stateDir, "host", "images"), CANARY).found.length).toBeGreaterThan(0);
    const snapshot = await post<{ id: string }>(api, `/v1/sandboxes/${photographed}/snapshots`);
    const { children } = await post<{ children: { sandbox: Sandbox }[] }>(
      api,
      `/v1/sandboxes/${forked}/fork`,
      {
        count: 1,
      },
    );
    const child = children[0]?.sandbox.id ?? "";
    expect(await exec(child, "cat /home/user/canary")).toContain(CANARY);
    await Promise.all([plain, slept, photographed, forked, child].map(destroy));
    await api.json(`/v1/snapshots/${snapshot.id}`, { method: "DELETE" });
  }, 180_000);

  test(`is in none of ${LATER} sandboxes that others make afterwards`, async () => {
    const { api } = torpor();
    await poolFull(torpor(), "base", { ready: WAITING });
    const found: string[] = [];
    let next = 0;
    let inMemory = 0;
    const work = async (): Promise<void> => {
      while (next < LATER) {
        const number = next++;
        const tenant = `other-${number % 3}`;
        const { id } = await post<Sandbox>(api, "/v1/sandboxes", {
          template: "base",
          tenant,
          ttl_seconds: 300,
        });
        const files = (await exec(id, SEARCH_FILES, { A, B })).trim();
        if (files !== "") found.push(`sandbox ${number}: ${files}`);
        if (number % IN_MEMORY_EVERY === 0) {
          const memory = await exec(id, `python3 - <<'EOF'\n${SEARCH_MEMORY}\nEOF`, { A, B });
          if (memory.includes("FOUND")) found.push(`sandbox ${number}: ${memory}`);
          if (/looked at [1-9]/.test(memory)) inMemory += 1;
        }
        await destroy(id);
      }
    };
    await Promise.all(Array.from({ length: WIDTH }, work));
    expect(found).toEqual([]);
    expect(inMemory).toBe(LATER / IN_MEMORY_EVERY);
  }, 300_000);

  test("is in no memory of a runtime, no shared memory and no file of the host's", async () => {
    const { stateDir } = torpor();
    const inMemory = memoryFilesThatHold(stateDir, CANARY);
    expect(inMemory).toMatchObject({ found: [] });
    expect(inMemory.looked).toBeGreaterThan(0); // the pool's are alive
    expect(filesThatHold("/dev/shm", CANARY).found).toEqual([]);
    // Blocks of a removed image are freed in the background, and the journal's log is emptied within seconds.
    let files = filesThatHold(stateDir, CANARY);
    await eventually(
      () => `the canary to be gone from ${files.found.join(", ")}`,
      () => files.found.length === 0 || (files = filesThatHold(stateDir, CANARY)).found.length === 0,
      60_000,
    );
    expect(files.looked).toBeGreaterThan(20);
  }, 120_000);

  test("is in no entry of the ledger, which says that nobody shared anything", async () => {
    const lines = (await torpor().api.call("/v1/ledger/export")).body.toString("utf8");
    expect(lines).not.toContain(CANARY);
    expect(
      lines.split("\n").filter((line) => line.includes('\\"source\\":\\"pool\\"')).length,
    ).toBeGreaterThan(10);
  });
});
