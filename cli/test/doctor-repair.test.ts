import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import { join } from "node:path";
import type { HostFinding, HostRepair } from "@torpor/protocol";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { findInstallation } from "../src/instance/installation.ts";
import { ownIdentity } from "../src/instance/process-identity.ts";
import { capturedCli } from "./captured-cli.ts";
import { temporaryInstance, type TemporaryInstance } from "./temporary-instance.ts";

const ORPHAN: HostFinding = {
  kind: "slot_unclaimed",
  what: "7",
  message: "slot 7 is in place and no sandbox is in it",
  repair: "removes it",
};

let instance: TemporaryInstance;
let host: Server | undefined;
let asked: string[];
let repair: HostRepair;

beforeEach(() => {
  instance = temporaryInstance();
  asked = [];
  repair = { repaired: [ORPHAN], failed: [], left: [] };
});
afterEach(async () => {
  await new Promise((resolve) => (host === undefined ? resolve(null) : host.close(resolve)));
  host = undefined;
  rmSync(instance.paths.hostFile, { force: true }); // dispose would take this process for a host that is left, and end it
  instance.dispose();
});

/** A host that serves on the socket, whose process is this one. */
async function serve(findings: () => HostFinding[]): Promise<void> {
  const { paths } = instance;
  mkdirSync(paths.runDir, { recursive: true });
  writeFileSync(paths.hostToken, "token of sixteen\n");
  writeFileSync(paths.hostFile, JSON.stringify(ownIdentity()));
  host = createServer((incoming, outgoing) => {
    asked.push(`${incoming.method} ${incoming.url}`);
    const isRepair = incoming.method === "POST";
    outgoing.end(JSON.stringify(isRepair ? repair : { findings: findings() }));
  });
  await new Promise<void>((resolve) => host?.listen(paths.hostSocket, resolve));
}

function doctor(...args: string[]): Promise<{ exitCode: number; stdout: string }> {
  return capturedCli(["doctor", "--state-dir", instance.paths.stateDir, ...args]);
}

describe.skipIf(process.getuid?.() !== 0)("doctor, as root", () => {
  it("shows what is in place and nobody's, and changes nothing", async () => {
    await serve(() => [ORPHAN]);
    const { stdout } = await doctor();
    expect(stdout).toContain("slot 7 is in place and no sandbox is in it (repair: removes it)");
    expect(stdout).toContain(`torpor doctor --repair --state-dir '${instance.paths.stateDir}'`);
    expect(asked).toEqual(["GET /v1/findings"]);
  });

  it("has the host repair it with --repair, and says what was done", async () => {
    await serve(() => (asked.includes("POST /v1/findings/repair") ? [] : [ORPHAN]));
    const { stdout } = await doctor("--repair", "--json");
    const { checks, repair: told } = JSON.parse(stdout) as {
      checks: { name: string; status: string }[];
      repair: HostRepair;
    };
    expect(told).toEqual(repair);
    expect(checks.find(({ name }) => name === "leftovers")).toMatchObject({ status: "ok" });
    expect((await doctor("--repair")).stdout).toMatch(/repaired slot 7 is in place/);
  });

  it("fails when a repair does, and tells why", async () => {
    repair = { repaired: [], failed: [{ finding: ORPHAN, error: "Error: it outlives SIGKILL" }], left: [] };
    await serve(() => [ORPHAN]);
    const { exitCode, stdout } = await doctor("--repair");
    expect(exitCode).toBe(1);
    expect(stdout).toContain("failed slot 7 is in place and no sandbox is in it: Error: it outlives SIGKILL");
  });

  it("says how to take over or end what a host that is gone has left", async () => {
    mkdirSync(instance.paths.runDir, { recursive: true });
    writeFileSync(instance.paths.undrained, "");
    const { stdout } = await doctor("--repair");
    const binary = join(findInstallation().root, "bin", "torpor");
    const named = `--state-dir '${instance.paths.stateDir}'`;
    expect(stdout).toContain(
      `Take them over: sudo ${binary} up --detach ${named}. Or end them: sudo ${binary} down ${named}.`,
    );
    expect(asked).toEqual([]);
  });
});
