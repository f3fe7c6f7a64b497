import { readdirSync } from "node:fs";
import { join } from "node:path";
import { run } from "@torpor/base";
import { afterEach, describe, expect, test } from "vitest";
import { newSnapshotId } from "@torpor/protocol";
import { eventually } from "../src/eventually.ts";
import { Notebook } from "../src/notebook.ts";
import { useInstance } from "../src/use-instance.ts";

/** Everything that can be done to a root: new, changed, gone, replaced, and of every kind. */
const UPSET = `python3 - <<'PROGRAM'
import os, shutil, socket, stat
home = b"/home/user/"
def put(path, content=b"x", mode=0o644):
    with open(path, "wb") as file: file.write(content)
    os.chmod(path, mode)
put(home + b"plain", b"hello")
put(home + b"empty", b"")
put(home + b"new\\nline \\xff\\xfe'\\"$(rm)", b"named badly")
put(home + b"n" * 255, b"long name")
put(home + b"secret", b"s", 0o4755); os.chown(home + b"secret", 0, 0); os.chmod(home + b"secret", 0o4755)
put(home + b"attributed"); os.setxattr(home + b"attributed", b"user.colour", b"\\x00red\\xff")
os.setxattr(home, b"user.folder", b"too")
put(home + b"old"); os.utime(home + b"old", ns=(10**18 + 1, 10**18 + 123456789))
os.makedirs(home + b"d1/d2/d3"); put(home + b"d1/d2/d3/deep"); os.chmod(home + b"d1/d2", 0o1777); os.chmod(home + b"d1/d2/d3", 0o500)
os.chown(home + b"d1", 1234, 4321)
os.link(home + b"plain", home + b"d1/also-plain"); os.link(home + b"plain", b"/opt/third-name")
os.symlink(b"/nowhere/at all", home + b"dangling"); os.symlink(b"d1", home + b"to-folder")
os.mkfifo(home + b"pipe", 0o640)
try: os.mknod(home + b"device", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
except OSError: pass
socket.socket(socket.AF_UNIX).bind(home + b"socket")
with open(home + b"sparse", "wb") as file:
    file.truncate(1 << 34); file.seek(1 << 33); file.write(b"in the middle"); file.seek((1 << 34) - 1); file.write(b"!")
with open(home + b"mixed", "wb") as file:
    for n in range(64): file.write((b"data%d" % n).ljust(4096, b".") if n % 3 else bytes(4096))
    file.write(b"tail")
os.makedirs(home + b"tree/.git")
for n in range(2000): put(home + b"tree/%d" % n, b"file %d" % n)
# Of the template:
os.remove(b"/usr/bin/tac")                                  # gone
shutil.rmtree(b"/usr/share/perl5")                          # a folder gone
os.chmod(b"/usr/bin/head", 0o700)                           # its mode
os.chown(b"/usr/share/man", 7, 7)                           # a folder's owner
with open(b"/etc/profile", "ab") as file: file.write(b"# mine\\n")
shutil.rmtree(b"/usr/share/doc/bash"); put(b"/usr/share/doc/bash", b"was a folder")
os.remove(b"/usr/bin/nl"); os.makedirs(b"/usr/bin/nl/now"); put(b"/usr/bin/nl/now/a-folder")
shutil.rmtree(b"/usr/share/base-files"); os.mkdir(b"/usr/share/base-files"); put(b"/usr/share/base-files/only")
os.rename(b"/usr/bin/fold", b"/usr/bin/moved-fold")
shutil.rmtree(b"/usr/share/doc/coreutils"); os.symlink(b"/etc", b"/usr/share/doc/coreutils")
os.link(b"/usr/bin/cut", b"/usr/bin/cut-too")
os.mkdir(b"/mnt/mounted"); os.system("mount -t tmpfs none /mnt/mounted && echo gone > /mnt/mounted/in-memory")
os.system("echo gone > /dev/shm/in-memory")
put(b"/tmp/kept", b"t"); put(b"/workspace/kept", b"w")
PROGRAM`;

/** A line for everything below the root that an incarnation does not make anew, with all that is known of it. */
const LISTING = `python3 - <<'PROGRAM'
import hashlib, os, stat
own = {b"/proc", b"/sys", b"/dev", b"/run/torpor", b"/mnt/mounted", b"/home/user/socket"}
anew = {b"/etc/hostname", b"/etc/hosts", b"/etc/machine-id", b"/etc/resolv.conf", b"/var/lib/dbus/machine-id"}
touched = {os.path.dirname(path) for path in own | anew} | {b"/", b"/tmp"}
lines = []
def look(path):
    if path in own | anew: return
    s = os.lstat(path)
    what, more = stat.S_IFMT(s.st_mode), ""
    if stat.S_ISREG(s.st_mode):
        with open(path, "rb") as file:
            more = hashlib.sha1(file.read(1 << 20)).hexdigest()
            if s.st_size > 1 << 30:
                for at in (0, (1 << 33) - 3, s.st_size - 5): file.seek(at); more += repr(file.read(20))
    if stat.S_ISLNK(s.st_mode): more = repr(os.readlink(path))
    else: more += repr([(n, os.getxattr(path, n)) for n in sorted(os.listxattr(path))])
    when = 0 if path in touched else s.st_mtime_ns
    names = 0 if what == stat.S_IFDIR else s.st_nlink
    size = 0 if what == stat.S_IFDIR else s.st_size
    lines.append(f"{path!r} {s.st_mode:o} {s.st_uid} {s.st_gid} {size} {names} {when} {s.st_rdev} {more}")
    if what == stat.S_IFDIR:
        for name in sorted(os.listdir(path)): look(os.path.join(path, name) if path != b"/" else b"/" + name)
look(b"/")
print("\\n".join(lines))
PROGRAM`;

/** Sends the agent an init, and notes what it says. */
const SELF_MADE = String.raw`( exec 3<>/dev/tcp/127.0.0.1/49983 && printf 'POST /torpor/init HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}' >&3 && head -n 1 <&3 >> /tmp/said ) > /dev/null 2>&1 &`;

describe("a machine that sleeps without its memory", () => {
  const torpor = useInstance({ pool: 0, shells: 0 });
  const output = (id: string, command: string, user = "root"): Promise<string> =>
    torpor().host.output(id, command, { user });

  afterEach(() => torpor().host.endAll());

  test("wakes with every file as it was, and nothing else", async () => {
    const { id, started_at: startedAt } = await torpor().host.create({ env: { GREETING: "hello" } });
    await output(id, UPSET);
    await output(id, "sleep 1000 > /dev/null 2>&1 &");
    const [names, bootId] = await Promise.all([
      output(id, LISTING),
      output(id, "cat /etc/machine-id /proc/sys/kernel/random/boot_id"),
    ]);
    const whole = await torpor().host.snapshot(id);
    const asleep = await torpor().host.hibernate(id, false);
    expect(asleep).toMatchObject({ state: "hibernated", generation: 1, image: { memory: false } });
    expect(asleep.image?.size_bytes).toBeLessThan(whole.size_bytes);
    expect(asleep.image?.size_bytes).toBeLessThan(4_000_000);
    const awake = await torpor().host.wake(id);
    expect(awake).toMatchObject({
      id,
      state: "running",
      generation: 2,
      started_at: startedAt,
      attestation: { complete: true, generation: 2 },
    });
    expect(awake.incarnations.at(-1)).toMatchObject({ source: "image", generation: 2 });
    expect((await output(id, LISTING)).split("\n")).toEqual(names.split("\n"));
    expect(await output(id, "cat /etc/machine-id /proc/sys/kernel/random/boot_id")).not.toBe(bootId);
    expect(await output(id, "pgrep sleep; ls -A /dev/shm /mnt/mounted; echo $GREETING; hostname")).toBe(
      `/dev/shm:\n\n/mnt/mounted:\nhello\n${id}`,
    );
    // And once more: what was written back is as good as what was written first.
    await output(id, "rm -r /usr/bin/nl /home/user/tree; echo again > /home/user/plain");
    const second = await output(id, LISTING);
    await torpor().host.hibernate(id, false);
    expect(await torpor().host.wake(id)).toMatchObject({ generation: 3 });
    expect((await output(id, LISTING)).split("\n")).toEqual(second.split("\n"));
  });

  test("cannot say itself whose it is, though what is its own runs before it is told", async () => {
    const { id } = await torpor().host.create();
    await output(
      id,
      `touch /tmp/said; chmod 666 /tmp/said; cat >> /etc/profile <<'PROFILE'\n${SELF_MADE}\nPROFILE`,
    );
    await torpor().host.hibernate(id, false);
    expect(await torpor().host.wake(id)).toMatchObject({
      generation: 2,
      attestation: { complete: true, generation: 2 },
    });
    // Each login shell tries it: while the agent is locked it lacks the key, and later the agent has its identity.
    const said = (await output(id, "cat /tmp/said")).split("\n").map((line) => line.split(" ")[1]);
    expect(said).not.toEqual([]);
    expect(said.filter((status) => status !== "403" && status !== "409")).toEqual([]);
  });

  test("is not kept waiting for by a profile of its own that blocks", async () => {
    const { id } = await torpor().host.create();
    await output(
      id,
      "touch /workspace/go; echo 'until [ -e /workspace/go ]; do sleep 0.1; done' > /etc/profile.d/slow.sh",
    );
    await output(id, "rm /workspace/go; echo kept > /workspace/mark");
    await torpor().host.hibernate(id, false);
    const askedAt = performance.now();
    await torpor().host.wake(id);
    expect(performance.now() - askedAt).toBeLessThan(6000);
    const touched = await torpor().host.call(
      `/v1/machines/${id}/ports/49983/files?path=/workspace/go&username=root`,
      { method: "POST", headers: { "content-type": "application/octet-stream" }, body: "" },
    );
    expect(touched.status).toBe(200);
    expect(await output(id, "cat /workspace/mark")).toBe("kept");
  });

  test("is woken by nobody's work, and sleeps so by its clocks when told to", async () => {
    const { id } = await torpor().host.create({ idle_timeout_seconds: 1, hibernate_memory: false });
    await eventually("it to sleep", async () => (await torpor().host.get(id)).state === "hibernated");
    expect((await torpor().host.get(id)).image).toMatchObject({ memory: false });
    expect((await torpor().host.call(`/v1/machines/${id}/ports/49983/envs`)).status).toBe(409);
    expect(await torpor().host.wake(id)).toMatchObject({ state: "running", hibernate_memory: false });
  });

  test("has its template's services anew, and none of its own processes, when it came from a snapshot", async () => {
    const parent = await torpor().host.create({ template: "code-interpreter", memory_mb: 1024 });
    await output(parent.id, "echo of the snapshot > /workspace/file; sleep 1000 > /dev/null 2>&1 &");
    await new Notebook(torpor().host, parent.id).run("variable = 41");
    const { id: snapshotId } = await torpor().host.snapshot(parent.id, null, newSnapshotId());
    await torpor().host.end(parent.id);
    const { id } = await torpor().host.create({
      template: "code-interpreter",
      memory_mb: 1024,
      from_snapshot: snapshotId,
    });
    await output(id, "echo own >> /workspace/file");
    await torpor().host.hibernate(id, false);
    await torpor().host.wake(id);
    expect(await output(id, "cat /workspace/file; pgrep -x sleep || echo none")).toBe(
      "of the snapshot\nown\nnone",
    );
    const notebook = new Notebook(torpor().host, id);
    expect(await notebook.run("'variable' in globals()")).toMatchObject({ text: "False" });
  });

  /** Counts in a file, one whole line at a time, for as long as it lives. */
  const COUNTER =
    "setsid sh -c 'n=0; while :; do n=$((n+1)); echo line $n of many >> /workspace/count; done' > /dev/null 2>&1 < /dev/null &";
  const linesOf = (id: string): Promise<number> =>
    output(id, "grep -vc '^line [0-9]* of many$' /workspace/count >&2; wc -l < /workspace/count").then(
      Number,
    );
  const imagesDir = (): string => join(torpor().stateDir, "host", "images");

  test("runs on, with all that runs in it, when the host's disk is full", async () => {
    const { id } = await torpor().host.create();
    await output(id, `${COUNTER} head -c 20000000 /dev/urandom > /workspace/large`);
    await run(["mount", "-t", "tmpfs", "-o", "size=12m,mode=700", "torpor-test", imagesDir()]);
    try {
      const answer = await torpor().host.tryMove(id, "hibernate", { memory: false });
      expect(answer.json).toMatchObject({ error: { code: "no_space" } });
      expect(readdirSync(imagesDir())).toEqual([]);
      expect(await torpor().host.get(id)).toMatchObject({ state: "running", generation: 1 });
      const before = await linesOf(id);
      await eventually("the counter to go on", async () => (await linesOf(id)) > before);
    } finally {
      await run(["umount", imagesDir()]);
    }
    await torpor().host.hibernate(id, false);
    await torpor().host.wake(id);
    const lines = await linesOf(id);
    expect(await output(id, "grep -c '^line [0-9]* of many$' /workspace/count")).toBe(String(lines));
    expect(await output(id, "grep -lae 'of man[y]' /proc/[0-9]*/cmdline || echo gone")).toBe("gone");
  });

  // Moments after the call at which the host is killed; how far it then is depends on the machine.
  test.each([30, 200])(
    "loses nothing when the host is killed %i ms into its sleep, or into its wake",
    async (afterMs) => {
      const { host } = torpor();
      const { id } = await host.create();
      await output(id, `${COUNTER} head -c 30000000 /dev/urandom > /workspace/large`);
      const sum = await output(id, "sha1sum /workspace/large");
      const killedWhile = async (asked: Promise<unknown>): Promise<string> => {
        asked.catch(() => {});
        await new Promise((resolve) => setTimeout(resolve, afterMs));
        await torpor().killHost("SIGKILL");
        await torpor().startHost();
        return await eventually("what was begun to be finished or undone", async () => {
          const { state } = await host.get(id);
          return state === "running" || state === "hibernated" ? state : undefined;
        });
      };
      if ((await killedWhile(host.hibernate(id, false))) === "running") {
        const before = await linesOf(id);
        await eventually("the counter to go on", async () => (await linesOf(id)) > before);
        await host.hibernate(id, false);
      }
      await killedWhile(host.wake(id));
      await host.wake(id);
      expect(await output(id, "sha1sum /workspace/large")).toBe(sum);
      expect(await output(id, "grep -lae 'of man[y]' /proc/[0-9]*/cmdline || echo gone")).toBe("gone");
    },
  );
});
