import { mkdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { readStatus } from "../src/instance/instance-status.ts";
import { isAlive } from "../src/instance/process-identity.ts";
import { readRunFile } from "../src/instance/run-file.ts";
import { shutDown } from "../src/instance/shut-down.ts";
import { type Instance, startInstance } from "../src/instance/supervisor.ts";
import { supervisorOf } from "../src/instance/supervisor-lock.ts";
import { capturedCli } from "./captured-cli.ts";
import { type TemporaryInstance, temporaryInstance } from "./temporary-instance.ts";

let bed: TemporaryInstance;
let events: string[];
let running: Instance | undefined;

beforeEach(() => {
  bed = temporaryInstance();
  events = [];
  running = undefined;
});

afterEach(async () => {
  await running?.stop({ drain: false });
  bed.dispose();
});

async function start(
  env: NodeJS.ProcessEnv = {},
  readyTimeoutMs = 10_000,
  localTls = false,
): Promise<Instance> {
  running = await startInstance({
    paths: bed.paths,
    installation: bed.installation,
    listen: "127.0.0.1:0",
    localTls,
    env: { PATH: process.env["PATH"], ...env },
    readyTimeoutMs,
    onEvent: (event) => events.push(event.type === "note" ? event.message : `${event.name} ${event.type}`),
  });
  return running;
}

async function until(condition: () => boolean, what: string, timeoutMs = 8_000): Promise<void> {
  const deadline = Date.now() + timeoutMs;
  while (!condition()) {
    if (Date.now() > deadline) throw new Error(`waited ${timeoutMs} ms in vain for: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

describe("the supervisor", () => {
  it("starts the host before the server, serves a status, and stops the server first, then drains the host", async () => {
    const instance = await start();
    expect(events).toEqual(["host started", "host ready", "server started", "server ready"]);
    const status = await readStatus(bed.paths, bed.installation);
    expect(status).toMatchObject({
      driver: "gvisor",
      acceleration: "systrap",
      healthy: true,
      url: instance.file.url,
    });
    expect(status.pids.host).toBe(readRunFile(bed.paths.hostFile)?.pid);
    await instance.stop({ drain: true });
    expect(bed.trace().slice(-3)).toEqual(["server TERM", "host POST /v1/drain", "host TERM"]);
    await expect(readStatus(bed.paths, bed.installation)).rejects.toThrow(/no Torpor instance runs/);
    expect(supervisorOf(bed.paths.supervisorLock)).toBeNull();
  });

  it("keeps the host token to its owner and the state directories closed", async () => {
    await start();
    expect(statSync(bed.paths.hostToken).mode & 0o777).toBe(0o600);
    expect(statSync(bed.paths.hostDir).mode & 0o777).toBe(0o700);
    expect(statSync(bed.paths.serverDir).mode & 0o777).toBe(0o700);
    expect(statSync(bed.paths.logsDir).mode & 0o777).toBe(0o700);
    expect(statSync(bed.paths.stateDir).mode & 0o777).toBe(0o711);
    expect(readFileSync(bed.paths.hostToken, "utf8")).toMatch(/^[0-9a-f]{64}$/);
  });

  it("starts a crashed server again and reports healthy afterwards", async () => {
    await start();
    const before = readRunFile(bed.paths.serverFile);
    process.kill(before?.pid ?? 0, "SIGKILL");
    await until(
      () =>
        events.filter((event) => event === "server ready").length === 1 && events.includes("server crashed"),
      "the crash",
    );
    await until(() => {
      const now = readRunFile(bed.paths.serverFile);
      return now !== null && now.pid !== before?.pid && isAlive(now);
    }, "a new server");
    expect((await readStatus(bed.paths, bed.installation)).healthy).toBe(true);
  });

  it("says what the log says when the host cannot start, and leaves nothing running", async () => {
    await expect(start({ FAKE_HOST: "die" })).rejects.toThrow(
      /the host did not start: it exited with 3[\s\S]*host cannot start: no such device/,
    );
    expect(supervisorOf(bed.paths.supervisorLock)).toBeNull();
    expect(bed.trace()).toEqual(["host start"]);
  });

  it("gives up on a server that never serves and takes the host down with it", async () => {
    await expect(start({ FAKE_SERVER: "never-ready" }, 700)).rejects.toThrow(
      /the server did not start: it was not ready after 0.7 s/,
    );
    expect(bed.trace()).toContain("host TERM");
    expect(readRunFile(bed.paths.hostFile)).toBeNull();
  });

  it("gives the server a certificate of the instance's own, the same at the next start, and says what to trust", async () => {
    const first = await start({}, 10_000, true);
    const { leafFile, authorityFile } = bed.paths;
    expect(bed.trace()).toContain(`server TLS ${leafFile} ${leafFile}`);
    expect((await readStatus(bed.paths, bed.installation)).tls).toEqual({
      url: expect.stringMatching(/^https:\/\/localhost:\d+$/) as string,
      authority_file: authorityFile,
    });
    const before = [readFileSync(leafFile, "utf8"), readFileSync(authorityFile, "utf8")];
    await first.stop({ drain: false });
    await start({}, 10_000, true);
    expect([readFileSync(leafFile, "utf8"), readFileSync(authorityFile, "utf8")]).toEqual(before);
  });

  it("leaves nothing running when the certificate authority is damaged", async () => {
    mkdirSync(bed.paths.tlsDir, { recursive: true });
    writeFileSync(bed.paths.authorityFile, "not a certificate");
    await expect(start({}, 10_000, true)).rejects.toThrow(/certificate authority is damaged/);
    expect(readRunFile(bed.paths.hostFile)).toBeNull();
    expect(supervisorOf(bed.paths.supervisorLock)).toBeNull();
  });

  it("refuses a second supervisor of the same state directory", async () => {
    await start();
    await expect(
      startInstance({
        paths: bed.paths,
        installation: bed.installation,
        listen: "127.0.0.1:0",
        env: {},
        onEvent: () => {},
      }),
    ).rejects.toThrow(/already runs/);
    expect((await readStatus(bed.paths, bed.installation)).healthy).toBe(true);
  });

  it("takes over a lock whose holder is dead, even if its pid is in use again", async () => {
    mkdirSync(bed.paths.runDir, { recursive: true });
    writeFileSync(bed.paths.supervisorLock, JSON.stringify({ pid: process.ppid, start_time: 1 }));
    await start();
    expect(supervisorOf(bed.paths.supervisorLock)?.pid).toBe(process.pid);
  });
});

describe.skipIf(process.getuid?.() !== 0)("up, as root, where an instance runs already", () => {
  const up = (env: NodeJS.ProcessEnv, ...args: string[]) =>
    capturedCli(["up", "--detach", "--state-dir", bed.paths.stateDir, ...args], env);

  it("is fine with the same address or none, and refuses another", async () => {
    await start();
    expect(await up({})).toMatchObject({ exitCode: 0, stderr: "Torpor runs already.\n" });
    expect(await up({}, "--listen", "127.0.0.1:0")).toMatchObject({ exitCode: 0 });
    for (const other of [
      await up({}, "--listen", "127.0.0.1:7999"),
      await up({ TORPOR_LISTEN: "127.0.0.1:7999" }),
      await up({}, "--listen", "0.0.0.0:0"),
    ]) {
      expect(other).toMatchObject({ exitCode: 1, stdout: "" });
      expect(other.stderr).toMatch(/listens on 127\.0\.0\.1:0, not on/);
    }
  });

  it("refuses TLS of its own where it runs without, or beside a certificate that is given", async () => {
    await start();
    for (const other of [await up({}, "--tls"), await up({ TORPOR_TLS: "local" })])
      expect(other).toMatchObject({
        exitCode: 1,
        stderr: expect.stringMatching(/without a certificate of its own/),
      });
    const both = await up({ TORPOR_TLS_CERT: "/c.pem", TORPOR_TLS_KEY: "/k.pem" }, "--tls");
    expect(both).toMatchObject({ exitCode: 2, stderr: expect.stringMatching(/choose one/) });
    expect(await up({ TORPOR_TLS: "yes" })).toMatchObject({ exitCode: 2 });
    await running?.stop({ drain: false });
    await start({}, 10_000, true);
    const { exitCode, stdout } = await up({}, "--tls");
    expect(exitCode).toBe(0);
    expect(stdout).toMatch(/tls +https:\/\/localhost:\d+\ntrust +export NODE_EXTRA_CA_CERTS=.*ca\.pem/);
  });

  it("names the settings that it was started without", async () => {
    await start();
    const { exitCode, stderr } = await up({ TORPOR_MAX_LIFETIME_SECONDS: "60", TORPOR_API_KEY: "tp_x" });
    expect(exitCode).toBe(0);
    expect(stderr).toContain("other settings, which stay: TORPOR_MAX_LIFETIME_SECONDS. To change");
  });

  it("names the settings that empty variables would take back", async () => {
    await start({ TORPOR_MAX_LIFETIME_SECONDS: "60" });
    const { stderr } = await up({ TORPOR_MAX_LIFETIME_SECONDS: "", TORPOR_POOL_TARGET: "" });
    expect(stderr).toContain("other settings, which stay: TORPOR_MAX_LIFETIME_SECONDS. To change");
  });

  it("answers with a note where the file of its settings is damaged", async () => {
    await start();
    writeFileSync(bed.paths.settingsFile, "{");
    const { exitCode, stderr } = await up({}, "--reset-settings");
    expect(exitCode).toBe(0);
    expect(stderr).toMatch(/Torpor runs already[\s\S]*cannot be told: .*settings\.json, cannot be read/);
  });
});

describe("down", () => {
  const down = (notes: string[] = []) =>
    shutDown({
      paths: bed.paths,
      installation: bed.installation,
      env: { PATH: process.env["PATH"] },
      drain: true,
      onNote: (message) => notes.push(message),
    });

  it("does nothing, successfully, when nothing runs", async () => {
    expect(await down()).toEqual({ was_running: false, killed: [] });
  });

  it.skipIf(process.getuid?.() !== 0)("says that sandboxes run on when they are kept", async () => {
    mkdirSync(bed.paths.runDir, { recursive: true });
    writeFileSync(bed.paths.undrained, "");
    const { stdout } = await capturedCli(["down", "--keep-sandboxes", "--state-dir", bed.paths.stateDir]);
    expect(stdout).toMatch(/Sandboxes that were left run on: 'sudo .*\/bin\/torpor up --detach --state-dir /);
  });

  it("starts a host for the clean-up when machines were left without one", async () => {
    mkdirSync(bed.paths.runDir, { recursive: true });
    writeFileSync(bed.paths.undrained, "");
    const notes: string[] = [];
    expect(await down(notes)).toEqual({ was_running: true, killed: [] });
    expect(bed.trace()).toContain("host POST /v1/drain");
    expect(notes.join()).toMatch(/starting one to do it/);
    expect(await down()).toEqual({ was_running: false, killed: [] });
  });

  it("ends machines that were left though the file of the settings is damaged", async () => {
    mkdirSync(bed.paths.runDir, { recursive: true });
    writeFileSync(bed.paths.undrained, "");
    writeFileSync(bed.paths.settingsFile, "{");
    const notes: string[] = [];
    expect(await down(notes)).toMatchObject({ was_running: true });
    expect(bed.trace()).toContain("host POST /v1/drain");
    expect(notes.join()).toMatch(/without them: .*settings\.json, cannot be read/);
  });
});
