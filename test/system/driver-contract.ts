import { mkdtempSync, readdirSync, readFileSync, realpathSync, rmSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import type {
  Driver,
  MachineHandle,
  MachineLimits,
  MachinePlace,
  MachineRoot,
} from "../../host/src/driver/driver.ts";
import { Checksums } from "../../host/src/image/checksum.ts";
import { eventually } from "../src/eventually.ts";
import { expectNoLeaks, lookAtMachine, type MachineState } from "../src/leak-check.ts";
import { DirectGuest } from "./direct-guest.ts";

/** A driver and places for its machines, on a state directory of its own. */
export interface DriverBed {
  driver: Driver;
  /** Root filesystem with the guest agent in it. */
  root: MachineRoot;
  makePlace(diskMib: number): Promise<MachinePlace>;
  /** Takes a place apart after the driver has let go of it. */
  removePlace(place: MachinePlace): Promise<void>;
  close(): Promise<void>;
}

const LIMITS: MachineLimits = { cpu: 1, memoryMib: 512 };
const DISK_MIB = 512;

/** What every driver must do, whatever runs beneath it. */
export function describeDriver(name: string, open: (stateDir: string) => Promise<DriverBed>): void {
  describe(`the ${name} driver`, () => {
    let stateDir: string;
    let bed: DriverBed;
    let before: MachineState;
    const places: MachinePlace[] = [];

    beforeAll(async () => {
      stateDir = realpathSync(mkdtempSync(join(tmpdir(), "torpor-test-driver-")));
      before = await lookAtMachine(stateDir);
      bed = await open(stateDir);
    });
    afterAll(async () => {
      try {
        for (const place of places) {
          await bed.driver.kill(place);
          await bed.removePlace(place);
        }
        await bed.close();
        await expectNoLeaks(stateDir, before);
      } finally {
        rmSync(stateDir, { recursive: true, force: true });
      }
    });

    async function place(diskMib = DISK_MIB): Promise<MachinePlace> {
      const made = await bed.makePlace(diskMib);
      places.push(made);
      return made;
    }

    /** A booted, unlocked machine that ends with the test. */
    async function booted(
      limits = LIMITS,
      diskMib = DISK_MIB,
    ): Promise<{ machine: MachineHandle; guest: DirectGuest }> {
      const machine = await bed.driver.boot(bed.root, await place(diskMib), limits);
      onTestFinished(() => bed.driver.kill(machine.place));
      const guest = await DirectGuest.unlock(machine.place.address);
      return { machine, guest };
    }

    /** A machine restored from an image that ends with the test, still locked when the image was. */
    async function restored(imageDir: string): Promise<MachineHandle> {
      const machine = await bed.driver.prepare(bed.root, await place(), LIMITS);
      onTestFinished(() => bed.driver.kill(machine.place));
      await bed.driver.restore(machine, imageDir);
      return machine;
    }

    /** The same without a machine that was prepared. */
    async function started(imageDir: string): Promise<MachineHandle> {
      const machine = await bed.driver.start(bed.root, await place(), LIMITS, imageDir);
      onTestFinished(() => bed.driver.kill(machine.place));
      return machine;
    }

    async function imageDir(): Promise<string> {
      await mkdir(join(stateDir, "images"), { recursive: true });
      return join(stateDir, "images", String(Math.random()).slice(2));
    }

    test("boots a machine whose agent answers, locked", async () => {
      const machine = await bed.driver.boot(bed.root, await place(), LIMITS);
      onTestFinished(() => bed.driver.kill(machine.place));
      const guest = new DirectGuest(machine.place.address);
      expect(await guest.waitUntilUp()).toEqual({ locked: true });
      await expect(guest.output("true")).rejects.toThrow();
    });

    test("checkpoints a machine that runs on, and restores the image twice, each its own", async () => {
      const { machine, guest } = await booted();
      await guest.output("echo before > /workspace/file; (while :; do sleep 0.2; done) & echo $! > /tmp/pid");
      const image = await imageDir();
      const frozen = await guest.freeze();
      guest.close();
      await bed.driver.checkpoint(machine, image);
      expect(bed.driver.adopt(machine)).toBe(true);
      await guest.init(frozen);
      expect(await guest.output("cat /workspace/file")).toBe("before");
      const copies = await Promise.all([restored(image), started(image)]);
      const guests = await Promise.all(
        copies.map(async ({ place: { address } }, index) => {
          const copy = await DirectGuest.unlock(address, frozen);
          expect(
            await copy.output("cat /workspace/file; kill -0 $(cat /tmp/pid) && echo its process lives"),
          ).toBe("before\nits process lives");
          await copy.output(`echo copy ${index} > /workspace/file`);
          return copy;
        }),
      );
      expect(await Promise.all([guest, ...guests].map((one) => one.output("cat /workspace/file")))).toEqual([
        "before",
        "copy 0",
        "copy 1",
      ]);
    });

    test("holds the monotonic clock of what lies in an image, also the second time, and not the real one", async () => {
      const clocks = async (guest: DirectGuest): Promise<{ monotonic: number; real: number }> => {
        const [monotonic = NaN, real = NaN] = (
          await guest.output("python3 -c 'import time; print(time.monotonic(), time.time())'")
        )
          .split(" ")
          .map(Number);
        return { monotonic, real };
      };
      let { machine, guest } = await booted();
      for (let sleep = 0; sleep < 2; sleep += 1) {
        const before = await clocks(guest);
        const image = await imageDir();
        const frozen = await guest.freeze();
        guest.close();
        await bed.driver.checkpoint(machine, image);
        await bed.driver.kill(machine.place);
        await delay(5000);
        machine = await restored(image);
        guest = await DirectGuest.unlock(machine.place.address, frozen);
        const after = await clocks(guest);
        expect(after.real - before.real).toBeGreaterThan(5);
        expect(Math.abs(after.real - Date.now() / 1000)).toBeLessThan(0.5);
        expect(after.monotonic).toBeGreaterThan(before.monotonic);
        expect(after.real - before.real - (after.monotonic - before.monotonic)).toBeGreaterThan(5);
      }
    });

    test("restores at once into a primed machine, also when what was started ahead has died; one not used leaves nothing", async () => {
      const { machine, guest } = await booted();
      await guest.output("echo before > /workspace/file");
      const image = await imageDir();
      const frozen = await guest.freeze();
      guest.close();
      await bed.driver.checkpoint(machine, image);
      const primed = async (): Promise<MachineHandle> => {
        const prepared = await bed.driver.prepare(bed.root, await place(), LIMITS);
        onTestFinished(() => bed.driver.kill(prepared.place));
        await bed.driver.prime(prepared);
        return prepared;
      };
      const ahead = ({ place: { directory } }: MachineHandle): number[] =>
        readdirSync("/proc")
          .filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)
          .filter((name) => {
            const command = readIfThere(`/proc/${name}/cmdline`).split("\0");
            return command.includes("restore") && command.some((word) => word.includes(`${directory}/`));
          })
          .map(Number);
      const [used, orphaned, unused] = [await primed(), await primed(), await primed()];
      const begun = await eventually("it to be started", () => {
        const pids = ahead(orphaned);
        return pids.length > 0 ? pids : undefined;
      });
      for (const pid of begun) process.kill(pid, "SIGKILL");
      await eventually("it to be gone", () => ahead(orphaned).length === 0);
      for (const copy of [used, orphaned]) {
        await bed.driver.restore(copy, image);
        const answer = await DirectGuest.unlock(copy.place.address, frozen);
        expect(await answer.output("cat /workspace/file")).toBe("before");
      }
      await bed.driver.kill(unused.place);
      await expectNoProcessNames(unused.place.directory);
    });

    test("appends to the files of an image of which it says so, and never goes back in them", async () => {
      const { machine, guest } = await booted();
      await guest.output("head -c 100000000 /dev/urandom > /dev/shm/block");
      const image = await imageDir();
      await guest.freeze();
      guest.close();
      const files = bed.driver.info.growingFiles.map((name) => join(image, name));
      const reading = new Checksums();
      await reading.following(files, () => bed.driver.checkpoint(machine, image));
      for (const file of files) expect(await reading.of(file)).toEqual(await new Checksums().of(file));
    });

    test("leaves no half image when a checkpoint fails", async () => {
      const { machine } = await booted();
      await bed.driver.kill(machine.place);
      const image = await imageDir();
      await expect(bed.driver.checkpoint(machine, image)).rejects.toThrow(/checkpoint/);
      expect(() => readFileSync(image)).toThrow("ENOENT");
    });

    test("refuses an image that is not there, and the machine can be killed afterwards", async () => {
      const machine = await bed.driver.prepare(bed.root, await place(), LIMITS);
      await expect(bed.driver.restore(machine, join(stateDir, "no-such-image"))).rejects.toThrow(/restore/);
      await bed.driver.kill(machine.place);
      expect(bed.driver.adopt(machine)).toBe(false);
      const fresh = await place();
      await expect(
        bed.driver.start(bed.root, fresh, LIMITS, join(stateDir, "no-such-image")),
      ).rejects.toThrow(/restore .* slot/);
      await expectNoProcessNames(fresh.directory);
    });

    test("pauses to no CPU at all, and answers at once when resumed", async () => {
      const { machine, guest } = await booted();
      await guest.output("(while :; do :; done) > /dev/null 2>&1 &");
      await bed.driver.pause(machine);
      // What was on its way into the kernel ends there.
      await delay(100);
      const atPause = bed.driver.stats(machine).cpuMs;
      await delay(2000);
      expect(bed.driver.stats(machine).cpuMs - atPause).toBe(0);
      bed.driver.resume(machine);
      const resumedAt = performance.now();
      await guest.waitUntilUp();
      expect(performance.now() - resumedAt).toBeLessThan(1000);
      expect(bed.driver.stats(machine).cpuMs).toBeGreaterThan(atPause);
    });

    test("kills at once, whatever state it is in, and killing again is no error", async () => {
      const running = await booted();
      const paused = await booted();
      await bed.driver.pause(paused.machine);
      const prepared = await bed.driver.prepare(bed.root, await place(), LIMITS);
      for (const machine of [running.machine, paused.machine, prepared]) {
        await bed.driver.kill(machine.place);
        await bed.driver.kill(machine.place);
        expect(bed.driver.adopt(machine)).toBe(false);
      }
    });

    test("stops what runs, whatever state it is in, and leaves the files for a look at them", async () => {
      const running = await booted();
      const paused = await booted();
      await bed.driver.pause(paused.machine);
      for (const { machine } of [running, paused]) {
        await bed.driver.stop(machine.place);
        await bed.driver.stop(machine.place);
        expect(bed.driver.adopt(machine)).toBe(false);
        await expectNoProcessNames(machine.place.directory);
        expect(readdirSync(machine.place.directory)).toEqual(
          expect.arrayContaining(["disk.ext4", "console.log"]),
        );
        await bed.driver.kill(machine.place);
        expect(readdirSync(machine.place.directory)).not.toContain("disk.ext4");
      }
    });

    test("adopts exactly the process it started", async () => {
      const { machine } = await booted();
      expect(bed.driver.adopt(machine)).toBe(true);
      expect(
        bed.driver.adopt({
          ...machine,
          process: { ...machine.process, startTime: machine.process.startTime + 1 },
        }),
      ).toBe(false);
      process.kill(machine.process.pid, "SIGKILL");
      await eventually("the machine's process to be gone", () => !bed.driver.adopt(machine), 2000);
    });

    test("cancels a boot that is not wanted any more, and leaves nothing of it", async () => {
      const where = await place();
      const abort = new AbortController();
      const boot = bed.driver.boot(bed.root, where, LIMITS, abort.signal);
      setTimeout(() => abort.abort(), 60);
      await expect(boot).rejects.toThrow(/boot/);
      await expectNoProcessNames(where.directory);
    });

    test("keeps a process that takes too much memory from taking the machine with it, and counts it", async () => {
      const { machine, guest } = await booted({ cpu: 1, memoryMib: 256 });
      expect(bed.driver.stats(machine).oomKills).toBe(0);
      const { end } = await guest.exec(`python3 -c "x = bytearray(2_000_000_000)"`);
      expect(end.exitCode).not.toBe(0);
      await eventually("the kill to be counted", () => bed.driver.stats(machine).oomKills > 0);
      expect(await guest.output("echo still here")).toBe("still here");
      expect(bed.driver.stats(machine).memoryPeakBytes).toBeGreaterThan(256 * 1024 * 1024);
    });

    test("gives the CPU asked for and no more, and changes that while it runs", async () => {
      const { machine, guest } = await booted({ cpu: 0.5, memoryMib: 512 });
      await guest.output("for i in 1 2; do (while :; do :; done) > /dev/null 2>&1 & done");
      expect(await coresUsed(machine)).toBeLessThan(0.6);
      bed.driver.limit(machine, { cpu: 0.2, memoryMib: 512 });
      const frozen = await guest.freeze();
      guest.close();
      await bed.driver.checkpoint(machine, await imageDir()); // as fast as it can, and then limited again
      await guest.init(frozen);
      const throttled = await coresUsed(machine);
      expect(throttled).toBeLessThan(0.26);
      expect(throttled).toBeGreaterThan(0.1);
    });

    async function coresUsed(machine: MachineHandle): Promise<number> {
      const [startedAt, before] = [performance.now(), bed.driver.stats(machine).cpuMs];
      await delay(2000);
      return (bed.driver.stats(machine).cpuMs - before) / (performance.now() - startedAt);
    }

    test("ends a fork bomb at the inner limit; the machine lives", async () => {
      const { guest } = await booted({ cpu: 2, memoryMib: 1024 });
      const bomb =
        "import os,time\nn=0\ntry:\n  while n<5000:\n    if os.fork()==0: time.sleep(60)\n    n+=1\nexcept OSError: pass\nprint(n,flush=True)\n";
      const forked = Number(await guest.output(`python3 -c '${bomb}' & wait $!`));
      expect(forked).toBeGreaterThan(50);
      expect(forked).toBeLessThan(DirectGuest.pidsLimit * 2);
      await guest.output("pkill -KILL -u user python3 || true", { user: "root" });
      expect(await guest.output("echo still here")).toBe("still here");
    });

    test("answers ENOSPC inside when the disk is full; the machine lives and can free it", async () => {
      const { guest } = await booted(LIMITS, 64);
      const { stderr } = await guest.exec("dd if=/dev/zero of=/workspace/big bs=1M count=200 status=none");
      expect(stderr).toContain("No space left on device");
      expect(Number(await guest.output("stat -c %s /workspace/big"))).toBeGreaterThan(30 * 1024 * 1024);
      await guest.output("rm /workspace/big && echo freed > /workspace/small");
      expect(await guest.output("cat /workspace/small")).toBe("freed");
    });

    test("counts CPU and memory of a machine", async () => {
      const { machine, guest } = await booted();
      const idle = bed.driver.stats(machine);
      await guest.output(`python3 -c "x = bytearray(100_000_000); import time; t = time.monotonic()
while time.monotonic() - t < 0.5: pass
open('/tmp/ready', 'w').close(); time.sleep(0.2)"`);
      const busy = bed.driver.stats(machine);
      expect(busy.cpuMs - idle.cpuMs).toBeGreaterThan(400);
      expect(busy.memoryPeakBytes).toBeGreaterThan(90_000_000);
      expect(busy.oomKills).toBe(0);
    });
  });
}

/** Text of a file of a process that may be gone by now. */
function readIfThere(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}

async function expectNoProcessNames(text: string): Promise<void> {
  const state = await lookAtMachine(text);
  expect([...state.process], "processes of the machine").toEqual([]);
  expect([...state.mount], "mounts of the machine").toEqual([]);
}
