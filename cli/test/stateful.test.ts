import { afterEach, beforeEach, expect, it } from "vitest";
import { capturedCli } from "./captured-cli.ts";
import { FakeApi } from "./fake-api.ts";

let api: FakeApi;
beforeEach(async () => {
  api = await FakeApi.start();
});
afterEach(async () => {
  await api[Symbol.asyncDispose]();
});

const cli = (...args: string[]) => capturedCli(args, api.env);
const requested = (): unknown => [...api.sandboxes.values()].at(-1)?.["requested"];

it("create takes the clocks of both shapes, and says nothing of what it was not told", async () => {
  await cli(
    "create",
    "--persistent",
    "--tenant",
    "acme",
    "--idle-timeout",
    "60",
    "--no-auto-wake",
    "--no-hibernate-memory",
  );
  expect(requested()).toEqual({
    persistent: true,
    tenant: "acme",
    idle_timeout_seconds: 60,
    auto_wake: false,
    hibernate_memory: false,
  });
  await cli("create", "--on-expire", "hibernate", "--on-idle", "pause", "--retention", "9");
  expect(requested()).toEqual({ on_expire: "hibernate", on_idle: "pause", retention_seconds: 9 });
  await cli("create", "--from-snapshot", `snp${"a".repeat(23)}`);
  expect(requested()).toEqual({ from_snapshot: `snp${"a".repeat(23)}` });
});

it("hibernate, wake, pause and resume say where each sandbox stands, and of which failed", async () => {
  const id = (await cli("create")).stdout.trim();
  expect((await cli("hibernate", id)).stdout).toBe(`${id} hibernated (2.0 MiB)\n`);
  expect((await cli("wake", id)).stdout).toBe(`${id} running\n`);
  expect((await cli("hibernate", id, "--no-memory")).stdout).toBe(
    `${id} hibernated (2.0 MiB, files alone)\n`,
  );
  expect(JSON.parse((await cli("pause", id, "--json")).stdout)).toMatchObject({
    items: [{ id, state: "paused" }],
  });
  const mixed = await cli("resume", "sdoesnotexist0000000000", id);
  expect(mixed).toMatchObject({ exitCode: 1, stdout: `${id} running\n` });
  expect(mixed.stderr).toContain("there is no sandbox");
});

it("fork prints the copies' ids and fails when one could not be made", async () => {
  const id = (await cli("create")).stdout.trim();
  const { exitCode, stdout, stderr } = await cli("fork", id, "-n", "3");
  expect(stdout.trim().split("\n")).toHaveLength(3);
  expect(exitCode).toBe(1);
  expect(stderr).toContain("the host is full");
});

it("snapshots are taken, listed and deleted", async () => {
  const id = (await cli("create")).stdout.trim();
  const snapshot = (await cli("snapshot", "create", id, "--name", "base line")).stdout.trim();
  expect(snapshot).toMatch(/^snp/);
  expect((await cli("snapshots", "ls")).stdout).toMatch(/^ID +NAME[\s\S]*base line[\s\S]*1\.0 MiB/);
  expect((await cli("snapshot", "rm", snapshot, "snpother")).stdout).toBe(
    `${snapshot}\nsnpother (was not there)\n`,
  );
  expect((await cli("snapshot", "ls")).stdout).toBe("No snapshots.\n");
});

it("session makes a persistent sandbox unless told otherwise, and promote changes the shape", async () => {
  const id = (await cli("session", "chat-42", "--tenant", "acme")).stdout.trim();
  expect(requested()).toEqual({ tenant: "acme", key: "chat-42" });
  await cli("session", "chat-43", "--tenant", "acme", "--no-persistent");
  expect(requested()).toMatchObject({ persistent: false });
  expect((await cli("promote", id, "--reason", "kept")).stdout).toBe(`${id} persistent\n`);
  expect((await cli("promote", id, "--reason", "done", "--ephemeral")).stdout).toBe(`${id} ephemeral\n`);
  expect((await cli("promote", id)).exitCode).toBe(2);
});

it("session says that what it was given for the environment is not applied to a sandbox that was there", async () => {
  const given = ["session", "chat-42", "--tenant", "acme", "--env", "MODE=test"];
  const made = await cli(...given);
  expect(made.stderr).toBe("");
  const id = made.stdout.trim();
  api.scripted.set("POST /v1/sessions", { sandbox: api.sandboxes.get(id), created: false });
  expect(await cli(...given)).toMatchObject({
    exitCode: 0,
    stdout: `${id}\n`,
    stderr: `note: sandbox ${id} was there already and keeps its own environment; --env not applied\n`,
  });
  expect((await cli("session", "chat-42", "--tenant", "acme")).stderr).toBe("");
});

it("network says and changes what a sandbox may reach", async () => {
  const id = (await cli("create", "--network", "none")).stdout.trim();
  expect(requested()).toMatchObject({ network: "none" });
  await cli(
    "create",
    "--allow",
    "a.example,*.b.example",
    "--allow",
    "203.0.113.0/24",
    "--deny",
    "203.0.113.9",
  );
  expect(requested()).toMatchObject({
    network: { allow: ["a.example", "*.b.example", "203.0.113.0/24"], deny: ["203.0.113.9"] },
  });
  expect((await cli("network", "set", id, "internet")).stdout).toBe(`${id} internet\n`);
  expect((await cli("network", "set", id, "--allow", "a.example", "--deny", "192.0.2.1")).stdout).toBe(
    `${id} none; allow a.example; deny 192.0.2.1\n`,
  );
  expect((await cli("network", "show", id)).stdout).toBe("none; allow a.example; deny 192.0.2.1\n");
  expect(await cli("network", "set", id)).toMatchObject({
    exitCode: 2,
    stderr: expect.stringContaining("say 'internet', 'none', --allow or --deny"),
  });
});

it("state shows what is held and what a hibernation would lose", async () => {
  const id = (await cli("create")).stdout.trim();
  const { stdout } = await cli("state", id);
  expect(stdout).toMatch(/^KIND +HELD +PAUSE +HIBERNATE/);
  expect(stdout).toMatch(/files +3 changed, 2\.0 KiB +all +all/);
  expect(stdout).toMatch(/connections .*1 external +all +none +none +none/);
  expect(stdout).toContain("Lost by a hibernation: tcp a -> b");
  expect(JSON.parse((await cli("state", id, "--json")).stdout)).toMatchObject({
    files: { changed_count: 3 },
    taken_at: "2026-01-01T00:00:00.000Z",
  });
});

it("code prints output and value, and fails with the traceback", async () => {
  const id = (await cli("create")).stdout.trim();
  api.codeLines = [
    { type: "stdout", text: "out\n" },
    { type: "result", text: "3", is_main_result: true },
  ];
  expect(await cli("code", id, "print('out'); 1 + 2")).toMatchObject({ exitCode: 0, stdout: "out\n3\n" });
  api.codeLines = [{ type: "error", name: "ValueError", value: "no", traceback: "Traceback: no" }];
  const failed = await cli("code", id, "x", "--context", "c1", "--timeout", "5");
  expect(failed.exitCode).toBe(1);
  expect(failed.stderr).toContain("Traceback: no");
  expect(api.commands.at(-1)).toEqual({ code: "x", context_id: "c1", timeout_seconds: 5 });
});

it("events prints one line each, as JSON when asked, and takes the short names of types", async () => {
  const all = await cli("events", "--no-follow", "--tenant", "acme");
  expect(all.stdout).toBe(
    '2026-11-29T16:00:00.000Z sfake updated      on_idle=pause tenant=acme network=\'none; allow pypi.org\' metadata={"a":"b"} evt_7\n',
  );
  const id = (await cli("create")).stdout.trim();
  const one = await cli("events", id, "--no-follow", "--type", "destroyed", "--json");
  expect(JSON.parse(one.stdout)).toMatchObject({ type: "sandbox.destroyed", changes: { on_idle: "pause" } });
  expect(await cli("events", id, "--type", "exploded")).toMatchObject({ exitCode: 2 });
  expect(await cli("events", id, "--tenant", "acme")).toMatchObject({ exitCode: 2 });
});

it("show tells of one sandbox, of its attestation only when asked, and of all as JSON", async () => {
  const id = (await cli("create", "--name", "a\u001b[2Jb", "-m", "team=red")).stdout.trim();
  Object.assign(api.sandboxes.get(id) ?? {}, {
    attestation: {
      generation: 1,
      steps: [{ name: "entropy", outcome: "done", detail: "64 bytes", duration_us: 5 }],
      clock_offset_ms: 0,
      complete: true,
    },
    network: { egress: "none", allow: ["pypi.org"], deny: [] },
  });
  const { stdout } = await cli("show", id);
  expect(stdout).toContain(`id           ${id}\nname         a\\x1b[2Jb\nstate        running\n`);
  expect(stdout).toContain("size         1 CPU, 1024 MiB memory, 4096 MiB disk");
  expect(stdout).toContain("network      none; allow pypi.org");
  expect(stdout).toContain("label        team=red");
  expect(stdout).not.toContain("entropy");
  expect((await cli("show", id, "--attestation")).stdout).toContain("step         entropy: done (64 bytes)");
  expect(JSON.parse((await cli("show", id, "--json")).stdout)).not.toHaveProperty("attestation");
  expect(JSON.parse((await cli("show", id, "--json", "--attestation")).stdout)).toMatchObject({
    id,
    attestation: { complete: true },
  });
  expect(await cli("show", "snone00000000000000000000")).toMatchObject({ exitCode: 1 });
});

it("port prints the URL alone, lists without tokens, and revokes", async () => {
  const id = (await cli("create")).stdout.trim();
  expect((await cli("port", "ls", id)).stdout).toBe("No preview URLs.\n");
  const made = await cli("port", "url", id, "3000", "--expires-in", "60", "--auto-wake");
  expect(made.stdout).toBe("http://3000-x/?torpor_token=tpv_1\n");
  expect(api.previewUrls).toMatchObject([{ expires_in_seconds: 60, auto_wake: true }]);
  expect((await cli("ports", "ls", id)).stdout).toMatch(
    /^ID +PORT +HOST +WAKES +STATE[\s\S]*url_1 +3000 +3000-x\.localhost:7070 +yes +valid/,
  );
  expect((await cli("port", "revoke", id, "url_1")).stdout).toBe("url_1\n");
  expect((await cli("port", "revoke", id, "url_2")).stderr).toContain("has no preview URL url_2");
  expect(await cli("port", "url", id, "many")).toMatchObject({ exitCode: 2 });
});
