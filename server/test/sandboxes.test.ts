import { expect, test } from "vitest";
import { World } from "./world.ts";

test("a sandbox is created, runs a command, is listed and is destroyed", async () => {
  await using world = await World.start();
  const sandbox = await world.sandbox({ template: "base", metadata: { job: "1" }, ttl_seconds: 60 });
  expect(sandbox).toMatchObject({
    state: "running",
    template: "base",
    tenant: "default",
    driver: "gvisor",
    generation: 1,
    persistent: false,
  });
  const ran = await world.exec(sandbox.id, { cmd: "echo hi; echo oops >&2; exit 3" });
  expect(ran.body).toMatchObject({
    exit_code: 3,
    outcome: "exited",
    stdout: "hi\n",
    stderr: "oops\n",
    truncated: false,
    signal: null,
  });
  const list = await world.call("GET", "/v1/sandboxes?metadata.job=1");
  expect(list.body).toMatchObject({ items: [{ id: sandbox.id }], next_cursor: null });
  expect((await world.call("GET", `/v1/sandboxes/${sandbox.id}`)).body).toMatchObject({
    id: sandbox.id,
    state: "running",
  });
  const first = await world.call("DELETE", `/v1/sandboxes/${sandbox.id}`);
  expect(first).toMatchObject({ status: 200, body: { state: "destroyed", reason: "user" } });
  const second = await world.call("DELETE", `/v1/sandboxes/${sandbox.id}`);
  expect(second.body).toEqual(first.body);
  expect(world.host.liveMachines()).toEqual([]);
  const after = await world.exec(sandbox.id, { cmd: "true" });
  expect(after).toMatchObject({
    status: 410,
    body: { error: { code: "sandbox_ended", details: { reason: "user" } } },
  });
});
