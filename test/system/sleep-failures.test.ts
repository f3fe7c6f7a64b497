import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { run } from "@torpor/base";
import type { HttpAnswer } from "../src/http-client.ts";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { eventually } from "../src/eventually.ts";
import { FAKE_INTERNET, FakeInternet } from "../src/fake-internet.ts";
import { checkRows, residentState, startResident } from "../src/resident.ts";
import { useInstance } from "../src/use-instance.ts";

/**
 * Opens connections to the web server: idle ones, one that was just closed from here first, one by the server. Says how
 * an idle one ends that waits to read, and one that is written to.
 */
const CONNECTED = `
import json, os, socket, threading, time
def connect(port): return socket.create_connection(("${FAKE_INTERNET.webServer}", port))
reader, writer, closed_here, closed_there = connect(80), connect(80), connect(8080), connect(8080)
closed_here.shutdown(socket.SHUT_RDWR)
closed_here.close()
closed_there.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
while closed_there.recv(4096): pass
open("/workspace/connected", "w").write("yes")
outcomes = {}
def watch(name, act):
    try:
        while True:
            if not act(): raise EOFError
    except (OSError, EOFError) as error:
        outcomes[name] = {"outcome": type(error).__name__, "at": time.time()}
def write():
    time.sleep(0.05)
    return writer.send(b"")  or not os.path.exists("/workspace/woken") or writer.send(b"x")
threads = [threading.Thread(target=watch, args=(name, act)) for name, act in (("reader", lambda: reader.recv(10)), ("writer", write))]
for thread in threads: thread.start()
for thread in threads: thread.join()
open("/workspace/outcome.new", "w").write(json.dumps(outcomes))
os.rename("/workspace/outcome.new", "/workspace/outcome")
`;

/** A server with idle connections to the outside, all in one epoll instance; it answers with how many of them have ended. */
const EPOLL_SERVER = `
import asyncio
async def main():
    ended = 0
    async def hold():
        nonlocal ended
        reader, writer = await asyncio.open_connection("${FAKE_INTERNET.webServer}", 7)
        async def watch():
            nonlocal ended
            try: await reader.read(1)
            except OSError: pass
            ended += 1
        watching.append(asyncio.create_task(watch()))
        held.append(writer)
    held, watching = [], []
    async def answer(reader, writer):
        global line
        line = await reader.readline()
        while await reader.readline() not in (b"\\r\\n", b""): pass
        if line.startswith(b"GET /hold"):
            for _ in range(8): await hold()
        writer.write(b"HTTP/1.0 200 OK\\r\\n\\r\\n" + str(ended).encode())
        await writer.drain()
        writer.close()
    server = await asyncio.start_server(answer, "0.0.0.0", 8001)
    await server.serve_forever()
asyncio.run(main())
`;

/** Keeps connecting to where nobody answers: with the kernel's patience, a moment after each failure, and at once. */
const ATTEMPTS = `
import socket, threading, time
ends = open("/workspace/attempts", "a", buffering=1)
def attempt(name, pause):
    while True:
        try: socket.create_connection(("${FAKE_INTERNET.silent}", 80))
        except OSError as error: ends.write(f"{name} {type(error).__name__}\\n")
        time.sleep(pause)
for name, pause in (("patient", 1000), ("again", 0.5), ("impatient", 0.05)):
    threading.Thread(target=attempt, args=(name, pause)).start()
`;

describe("a sleep or a wake that goes wrong", () => {
  const torpor = useInstance();
  const output = (id: string, command: string, user?: string): Promise<string> =>
    torpor().host.output(id, command, user === undefined ? {} : { user });
  const imagesDir = (): string => join(torpor().stateDir, "host", "images");
  const machineDirs = (): string[] => readdirSync(join(torpor().stateDir, "host", "machines"));
  const codeOf = (answer: HttpAnswer): unknown => (answer.json as { error?: { code?: string } }).error?.code;

  afterEach(() => torpor().host.endAll());

  test.each(["pages.img", "checkpoint.img"])(
    "for one flipped byte in %s: the wake says so, nothing is served, and it sleeps on",
    async (name) => {
      const { id } = await torpor().host.create();
      await output(id, "echo kept > /workspace/mark");
      await torpor().host.hibernate(id);
      const [image = ""] = readdirSync(imagesDir());
      const path = join(imagesDir(), image, "data", name);
      const whole = readFileSync(path);
      const damaged = Buffer.from(whole);
      const at = Math.floor(damaged.length / 2);
      damaged[at] = (damaged[at] ?? 0) ^ 0x10;
      writeFileSync(path, damaged);
      const answer = await torpor().host.tryMove(id, "wake");
      expect([answer.status, codeOf(answer)]).toEqual([422, "image_corrupt"]);
      expect(answer.body.toString("utf8")).toContain(name);
      const request = await torpor().host.call(`/v1/machines/${id}/ports/49983/health`);
      expect([request.status, codeOf(request)]).toEqual([422, "image_corrupt"]);
      expect(await torpor().host.get(id)).toMatchObject({ state: "hibernated", generation: 1 });
      await eventually("its places to be tidied up", () => machineDirs().length === 0);
      writeFileSync(path, whole);
      expect(await output(id, "cat /workspace/mark")).toBe("kept");
    },
  );

  test("for lack of disk space in the middle of the image: it runs on, unharmed, and sleeps once there is room", async () => {
    const { id } = await torpor().host.create();
    const before = await startResident(torpor().host, id);
    await run(["mount", "-t", "tmpfs", "-o", "size=12m,mode=700", "torpor-test", imagesDir()]);
    try {
      const answer = await torpor().host.tryMove(id, "hibernate");
      expect(answer.status).toBeGreaterThanOrEqual(500);
      expect(answer.body.toString("utf8")).toMatch(/no space|checkpoint|ENOSPC/i);
      expect(readdirSync(imagesDir())).toEqual([]);
      expect(await torpor().host.get(id)).toMatchObject({ state: "running", generation: 1 });
      await eventually("the resident program to go on", async () => {
        const seen = await residentState(torpor().host, id);
        return seen.pid === before.pid && seen.count > before.count + 30;
      });
    } finally {
      await run(["umount", imagesDir()]);
    }
    await torpor().host.hibernate(id);
    await torpor().host.wake(id);
    expect(await residentState(torpor().host, id)).toMatchObject({ pid: before.pid, failed: null });
    expect(await checkRows(torpor().host, id)).toBe("ok 1");
  });

  test("for a restore hook that fails: it leaves nothing, and the machine sleeps on until the hook works", async () => {
    const { id } = await torpor().host.create();
    await output(id, "echo kept > /workspace/mark");
    const worksAt = Math.ceil(Date.now() / 1000) + 12;
    await output(
      id,
      `mkdir -p /etc/torpor/on-restore.d && printf '#!/bin/sh\\ntest $(date +%%s) -ge ${worksAt} || { echo the reseed failed >&2; exit 3; }\\n' > /etc/torpor/on-restore.d/50-broken && chmod 755 /etc/torpor/on-restore.d/50-broken`,
      "root",
    );
    await torpor().host.hibernate(id);
    const answer = await torpor().host.tryMove(id, "wake");
    expect([answer.status, codeOf(answer)]).toEqual([503, "guest_unavailable"]);
    expect(answer.body.toString("utf8")).toContain("50-broken");
    expect((await torpor().host.get(id)).state).toBe("hibernated");
    await eventually("its places to be tidied up", () => machineDirs().length === 0);
    await eventually("the hook to work", () => Date.now() / 1000 > worksAt, 20_000);
    expect(await output(id, "cat /workspace/mark")).toBe("kept");
  });

  test("for a copy whose restore hook fails: it fails, and leaves nothing", async () => {
    const { id } = await torpor().host.create();
    // The original runs its hooks too as it is unlocked again after the snapshot: it alone passes.
    await output(
      id,
      `mkdir -p /etc/torpor/on-restore.d && printf '#!/bin/sh\\ntest "$(hostname)" = ${id}\\n' > /etc/torpor/on-restore.d/50-only-me && chmod 755 /etc/torpor/on-restore.d/50-only-me`,
      "root",
    );
    const snapshot = await torpor().host.snapshot(id);
    const copy = await torpor().host.tryCreate({ from_snapshot: snapshot.id });
    expect([copy.status, codeOf(copy)]).toEqual([503, "guest_unavailable"]);
    await eventually("others to be tidied up", () => machineDirs().length === 1);
    expect(await output(id, "hostname")).toBe(id);
    expect((await torpor().host.removeSnapshot(snapshot.id)).status).toBe(204);
    await eventually("its blocks to be freed", () => readdirSync(imagesDir()).length === 0);
  });
});

describe("a machine with connections to the outside", () => {
  const torpor = useInstance();
  let internet: FakeInternet;

  beforeEach(async () => {
    internet = await FakeInternet.open();
  });
  afterEach(() => internet.close());

  test("sleeps all the same, whatever state they are in; they fail at once on waking, as foretold", async () => {
    const { host } = torpor();
    const { id } = await host.create();
    await host.output(
      id,
      `cat > /workspace/connected.py <<'PROGRAM'\n${CONNECTED}\nPROGRAM\ncd /workspace; setsid python3 connected.py > connected.log 2>&1 < /dev/null & disown`,
    );
    await eventually("its connections", () => host.output(id, "cat /workspace/connected"));
    // One made to it, held open by an answer that does not end.
    await host.output(
      id,
      `setsid python3 -c 'import socket, time
s = socket.create_server(("0.0.0.0", 8000))
c, _ = s.accept(); c.recv(1000); c.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\nbegun"); time.sleep(1000)' > /dev/null 2>&1 < /dev/null & disown`,
    );
    const incoming = await eventually("the server inside", async () => {
      const answer = await host.http.open(`/v1/machines/${id}/ports/8000/`);
      return answer.statusCode === 200 ? answer : undefined;
    });
    incoming.on("error", () => {});
    const cut = new Promise<string>((resolve) => {
      incoming.on("close", () => resolve("closed"));
      incoming.resume();
    });
    const { connections } = await host.state(id);
    const states = connections.external.map(({ remote, state }) => `${remote} ${state}`);
    // The one closed from here lingers in the runtime for a minute, but is nobody's any more: it is not listed.
    expect(states).toContain(`${FAKE_INTERNET.webServer}:80 ESTAB`);
    expect(states).toContain(`${FAKE_INTERNET.webServer}:8080 CLOSE-WAIT`);
    expect(connections.external.map(({ local }) => local.split(":").at(-1))).toContain("8000");

    await host.hibernate(id);
    expect(await cut).toBe("closed");
    await host.wake(id);
    const wokeAt = Date.now();
    await host.output(id, "touch /workspace/woken");
    const outcomes = await eventually("the connections to fail", async () => {
      const text = await host.output(id, "cat /workspace/outcome");
      return JSON.parse(text) as Record<"reader" | "writer", { outcome: string; at: number }>;
    });
    for (const { outcome, at } of Object.values(outcomes)) {
      expect(outcome).toMatch(/^Connection(Aborted|Reset)Error$|^BrokenPipeError$/);
      expect(at * 1000 - wokeAt).toBeLessThan(2000);
    }
    expect(Object.keys(outcomes).toSorted()).toEqual(["reader", "writer"]);
    expect(await host.output(id, `curl -sS http://${FAKE_INTERNET.webServer}/`)).toContain("seen from");
    await host.end(id);
  });

  test("falls asleep though a program keeps making some that are not answered, which sees them refused and goes on", async () => {
    const { host } = torpor();
    const { id } = await host.create({ idle_timeout_seconds: 2 });
    const attempts = async (): Promise<string[]> =>
      (await host.output(id, "cat /workspace/attempts")).split("\n");
    await host.output(
      id,
      `cat > /workspace/attempts.py <<'PROGRAM'\n${ATTEMPTS}\nPROGRAM\nsetsid python3 /workspace/attempts.py > /workspace/attempts.log 2>&1 < /dev/null & disown`,
    );
    await eventually(
      "the attempts",
      async () =>
        (await host.state(id)).connections.external.filter(({ state }) => state === "SYN-SENT").length === 3,
    );
    await eventually("it to sleep", async () => (await host.get(id)).state === "hibernated", 20_000);
    await host.wake(id);
    const seen = await eventually("every attempt to end", async () => {
      const ends = await attempts();
      return (
        ["patient", "again", "impatient"].every((name) => ends.some((end) => end.startsWith(name))) && ends
      );
    });
    for (const end of seen) expect(end).toMatch(/ConnectionRefusedError|ConnectionAbortedError/);
    await eventually("new ones", async () =>
      (await host.state(id)).connections.external.some(({ state }) => state === "SYN-SENT"),
    );
    const snapshot = await host.snapshot(id);
    expect((await host.removeSnapshot(snapshot.id)).status).toBe(204);
    expect(await host.output(id, `pkill python3; curl -sS http://${FAKE_INTERNET.webServer}/`)).toContain(
      "seen from",
    );
    await host.end(id);
  });

  test("and a server that waits in epoll beside them serves after every wake", async () => {
    const { host } = torpor();
    const { id } = await host.create();
    const ask = async (path: string): Promise<string> => {
      const answer = await host.call(`/v1/machines/${id}/ports/8001${path}`, { timeoutMs: 10_000 });
      if (answer.status !== 200) throw new Error(`the server inside answered ${answer.status}`);
      return answer.body.toString();
    };
    await host.output(
      id,
      `cat > /workspace/server.py <<'PROGRAM'\n${EPOLL_SERVER}\nPROGRAM\nsetsid python3 /workspace/server.py > /workspace/server.log 2>&1 < /dev/null & disown`,
    );
    await eventually("the server inside", () => ask("/"));
    for (let cycle = 1; cycle <= 6; cycle++) {
      await ask("/hold");
      await host.hibernate(id);
      await host.wake(id);
      await eventually("its connections to have ended", async () => (await ask("/")) === `${8 * cycle}`);
    }
    await host.end(id);
  });
});
