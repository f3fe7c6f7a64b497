import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { readStatus } from "../src/instance/instance-status.ts";
import { SETTING_NAMES, withKeptSettings } from "../src/instance/kept-settings.ts";
import { startTimeOf } from "../src/instance/process-identity.ts";
import { shutDown } from "../src/instance/shut-down.ts";
import { type Instance, startInstance } from "../src/instance/supervisor.ts";
import { describeStatus } from "../src/commands/status.ts";
import { styleFor } from "../src/output/style.ts";
import { type TemporaryInstance, temporaryInstance } from "./temporary-instance.ts";

let bed: TemporaryInstance;
let running: Instance | undefined;

beforeEach(() => {
  bed = temporaryInstance();
  running = undefined;
});

afterEach(async () => {
  await running?.stop({ drain: false });
  bed.dispose();
});

async function startAndStop(env: NodeJS.ProcessEnv, localTls = false): Promise<void> {
  running = await startInstance({
    paths: bed.paths,
    installation: bed.installation,
    listen: "127.0.0.1:0",
    localTls,
    env: { PATH: process.env["PATH"], ...env },
    onEvent: () => {},
  });
  await running.stop({ drain: false });
}

describe("the settings of an instance", () => {
  it("hold at the next start, and what is given then wins", async () => {
    await startAndStop(
      { TORPOR_MAX_LIFETIME_SECONDS: "600", TORPOR_TLS_LISTEN: "127.0.0.1:7444", TORPOR_API_KEY: "tp_x" },
      true,
    );
    const kept = {
      TORPOR_LISTEN: "127.0.0.1:0",
      TORPOR_MAX_LIFETIME_SECONDS: "600",
      TORPOR_TLS: "local",
      TORPOR_TLS_LISTEN: "127.0.0.1:7444",
    };
    expect(withKeptSettings(bed.paths, {})).toEqual(kept);
    expect(withKeptSettings(bed.paths, { TORPOR_MAX_LIFETIME_SECONDS: "60" })).toEqual({
      ...kept,
      TORPOR_MAX_LIFETIME_SECONDS: "60",
    });
  });

  it("are taken back by an empty variable, and a certificate that is given replaces one of the instance's own", async () => {
    await startAndStop({ TORPOR_MAX_LIFETIME_SECONDS: "600" }, true);
    await startAndStop(withKeptSettings(bed.paths, { TORPOR_MAX_LIFETIME_SECONDS: "" }), true);
    expect(withKeptSettings(bed.paths, {})).not.toHaveProperty("TORPOR_MAX_LIFETIME_SECONDS");
    const given = { TORPOR_TLS_CERT: "/c.pem", TORPOR_TLS_KEY: "/k.pem" };
    expect(withKeptSettings(bed.paths, given)).toEqual({ TORPOR_LISTEN: "127.0.0.1:0", ...given });
  });

  it("are not replaced by those of a start that failed", async () => {
    await startAndStop({ TORPOR_MAX_LIFETIME_SECONDS: "600" });
    await expect(startAndStop({ TORPOR_POOL_TARGET: "x", FAKE_HOST: "die" })).rejects.toThrow(
      /did not start/,
    );
    expect(withKeptSettings(bed.paths, {})).toHaveProperty("TORPOR_MAX_LIFETIME_SECONDS", "600");
  });

  it("are root's alone on the disk, and shown by 'status' without the password of a database", async () => {
    running = await startInstance({
      paths: bed.paths,
      installation: bed.installation,
      listen: "127.0.0.1:0",
      env: {
        PATH: process.env["PATH"],
        TORPOR_DATABASE_URL: "postgres://torpor:hush@db/torpor?password=hush",
      },
      onEvent: () => {},
    });
    expect(statSync(bed.paths.settingsFile).mode & 0o777).toBe(0o600);
    expect(readFileSync(bed.paths.instanceFile, "utf8")).not.toContain("hush");
    const status = await readStatus(bed.paths, bed.installation);
    expect(describeStatus(status, styleFor({}, {}))).toContain(
      "settings TORPOR_DATABASE_URL=postgres://db/torpor\n",
    );
  });

  it("are not silently dropped when their file is damaged", () => {
    writeFileSync(bed.paths.settingsFile, '{"TORPOR_MAX_LIFE');
    expect(() => withKeptSettings(bed.paths, {})).toThrow(
      /settings\.json, cannot be read[\s\S]*--reset-settings/,
    );
  });

  it("are kept of an instance that an older build started, when it is stopped", async () => {
    const supervisor = spawn("sleep", ["60"], {
      env: { PATH: process.env["PATH"], TORPOR_MAX_LIFETIME_SECONDS: "600", TORPOR_API_KEY: "tp_x" },
    });
    await once(supervisor, "spawn");
    const identity = { pid: supervisor.pid, start_time: startTimeOf(supervisor.pid ?? 0) };
    mkdirSync(bed.paths.runDir, { recursive: true });
    writeFileSync(bed.paths.supervisorLock, JSON.stringify(identity));
    const older = { url: "http://127.0.0.1:7171", listen: "127.0.0.1:7171", authority_file: "/ca.pem" };
    writeFileSync(bed.paths.instanceFile, JSON.stringify({ ...older, supervisor: identity }));
    await shutDown({ ...bed, env: {}, drain: false, onNote: () => {} });
    expect(withKeptSettings(bed.paths, {})).toEqual({
      TORPOR_LISTEN: "127.0.0.1:7171",
      TORPOR_MAX_LIFETIME_SECONDS: "600",
      TORPOR_TLS: "local",
    });
    expect(statSync(bed.paths.settingsFile).mode & 0o777).toBe(0o600);
  });

  it("are all that host and server read, but for the wires between the parts", () => {
    const wires = new Set([
      "TORPOR_STATE_DIR",
      "TORPOR_HOST_URL",
      "TORPOR_HOST_TOKEN",
      "TORPOR_RUN_AS",
      "TORPOR_API_KEY_FILE",
      "TORPOR_API_KEY_OWNER",
      "TORPOR_GUEST_BINARY",
      "TORPOR_TEMPLATES_SOURCE",
      "TORPOR_SOCKET_GID",
    ]);
    const read = ["host", "server"].flatMap((part) =>
      [
        ...readFileSync(new URL(`../../${part}/src/config.ts`, import.meta.url), "utf8").matchAll(
          /^\s+(TORPOR_\w+):/gm,
        ),
      ].map(([, name = ""]) => name),
    );
    const ofTheSupervisor = ["TORPOR_TLS"];
    expect([...new Set([...read, ...ofTheSupervisor])].filter((name) => !wires.has(name)).sort()).toEqual(
      [...SETTING_NAMES].sort(),
    );
  });
});
