import { setTimeout as delay } from "node:timers/promises";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import type { ExecProgress } from "../src/guest/exec.ts";
import { withKeepalives } from "../src/guest/keepalives.ts";
import { untilOverdue } from "../src/guest/overdue.ts";
import { eventually, World } from "./world.ts";

let world: World;
let id: string;

beforeAll(async () => {
  world = await World.start();
});
afterAll(() => world[Symbol.asyncDispose]());
beforeEach(async () => {
  ({ id } = await world.sandbox());
});

const machine = () => {
  const entry = world.host.machines.get(id);
  if (entry === undefined) throw new Error(`no machine ${id}`);
  return entry.machine;
};
const isUnderWay = (): Promise<void> =>
  eventually(() => [...world.guest(id).running.values()].some(({ events }) => events.length > 3));

/** Output of 400 lines in small writes, a second long. */
const COUNT =
  "for n in $(seq 1 400); do echo $n; [ $((n % 10)) = 0 ] && sleep 0.02; done; echo end >&2; exit 3";
const COUNTED = Array.from({ length: 400 }, (_, n) => `${n + 1}\n`).join("");

describe("a command whose connection is cut", () => {
  test("by a snapshot is gone on with where it broke: nothing is missing, nothing comes twice", async () => {
    const asked = world.exec(id, { cmd: COUNT });
    await isUnderWay();
    for (let cut = 0; cut < 3; cut += 1) {
      machine().state = "snapshotting";
      world.guest(id).cut();
      await delay(100);
      machine().state = "running";
      await delay(100);
    }
    expect((await asked).body).toMatchObject({
      outcome: "exited",
      exit_code: 3,
      stdout: COUNTED,
      stderr: "end\n",
      truncated: false,
    });
    expect(world.guest(id).starts).toHaveLength(1);
    expect(world.guest(id).connects).toHaveLength(3);
  });

  test("or whose stream comes in parts is whole", async () => {
    world.guest(id).partBytes = 300;
    expect((await world.exec(id, { cmd: COUNT })).body).toMatchObject({ exit_code: 3, stdout: COUNTED });
    expect(world.guest(id).connects.length).toBeGreaterThan(3);
    expect(world.guest(id).connects[0]).toMatchObject({ hold: true, replay: true });
  });

  test("before it has told that it started is asked for again, under the same id", async () => {
    world.host.fault({ on: /Start/, kind: "drop" });
    expect((await world.exec(id, { cmd: "echo once" })).body).toMatchObject({ stdout: "once\n" });
    expect(world.guest(id).starts).toEqual(["echo once"]);
  });

  test("while the sandbox is paused waits for it, and wakes nothing", async () => {
    const asked = world.exec(id, { cmd: COUNT });
    await isUnderWay();
    machine().state = "paused";
    world.guest(id).cut();
    await delay(300);
    expect(machine().state).toBe("paused");
    machine().state = "running";
    expect((await asked).body).toMatchObject({ outcome: "exited", stdout: COUNTED });
  });

  test("by a hibernation is lost, with how to find it after the wake", async () => {
    const asked = world.exec(id, { cmd: COUNT });
    await isUnderWay();
    machine().state = "hibernating";
    world.guest(id).cut();
    await delay(50);
    machine().state = "hibernated";
    const { body } = await asked;
    expect(body).toMatchObject({ outcome: "lost", exit_code: null });
    expect(body["message"]).toMatch(/goes on when the sandbox wakes.*processes\/\{exec_id\}\/output/);
    expect(machine().state).toBe("hibernated");
  });

  test("by a hibernation without memory is lost, and is not said to go on", async () => {
    const asked = world.exec(id, { cmd: COUNT });
    await isUnderWay();
    machine().state = "hibernating";
    world.guest(id).cut();
    await delay(50);
    const image = { id: "img1", size_bytes: 1, created_at: new Date().toISOString(), memory: false };
    Object.assign(machine(), { state: "hibernated", image });
    const { body } = await asked;
    expect(body).toMatchObject({ outcome: "lost", exit_code: null });
    expect(body["message"]).toMatch(/without its memory while the command ran, which ended by that/);
    expect(body["message"]).not.toMatch(/exec_id/);
  });

  test("and whose client leaves meanwhile is told so as soon as it can be", async () => {
    const left = new AbortController();
    const asked = world.exec(
      id,
      { cmd: "echo 1; echo 2; echo 3; echo 4; sleep 30" },
      { signal: left.signal },
    );
    asked.catch(() => {});
    await eventually(() => [...world.guest(id).running.values()].some(({ events }) => events.length > 1));
    machine().state = "snapshotting";
    world.guest(id).cut();
    await delay(50);
    left.abort();
    await delay(50);
    machine().state = "running";
    await eventually(() => world.guest(id).connects.length === 1);
  });
});

test("input that is cut is sent again under the same id, and so written once", async () => {
  const started = await world.exec(id, { cmd: "cat", keep_stdin_open: true, background: true });
  const path = `/v1/sandboxes/${id}/processes/${String(started.body["exec_id"])}`;
  world.host.fault({ on: /SendInput/, kind: "drop-after" });
  const put = await world.call("POST", `${path}/stdin`, {
    body: "typed",
    headers: { "content-type": "application/octet-stream" },
  });
  expect(put).toMatchObject({ status: 200, body: { bytes: 5 } });
  expect([...world.guest(id).inputs.values()]).toEqual([Buffer.from("typed").toString("base64")]);
});

test("the lifecycle names the commands that keep a sandbox awake, followed or not, and what it was last used for", async () => {
  const sandbox = await world.sandbox({ template: "base", persistent: true, tenant: "acme" });
  const lifecycle = async (): Promise<Record<string, unknown>> =>
    (await world.call("GET", `/v1/sandboxes/${sandbox.id}/lifecycle`)).body;
  expect(await lifecycle()).toMatchObject({
    holds: [],
    last_activity: { kind: "create" },
  });
  const { body } = await world.exec(sandbox.id, { cmd: "sleep 30", background: true });
  expect(await lifecycle()).toMatchObject({
    holds: [{ kind: "exec", what: body["exec_id"], since: expect.any(String) }],
    clocks: { idle: { at: null } },
  });
  const followed = world.host.machines.get(sandbox.id)?.machine;
  followed?.holds.push({ kind: "exec", what: String(body["exec_id"]), since: new Date().toISOString() });
  expect((await lifecycle())["holds"]).toHaveLength(1);
});

test("a watch that a snapshot cuts goes on, and says that something may have been missed", async () => {
  const left = new AbortController();
  const response = await world.fetch("GET", `/v1/sandboxes/${id}/fs/watch?path=/`, { signal: left.signal });
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  let seen = "";
  const until = async (text: string): Promise<void> => {
    while (!seen.includes(text)) seen += (await reader?.read())?.value ?? "";
  };
  await until("keepalive");
  expect(seen).not.toContain("missed");
  machine().state = "snapshotting";
  world.guest(id).cut();
  await delay(50);
  machine().state = "running";
  seen = "";
  await until("keepalive");
  expect(
    seen
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line) as unknown),
  ).toEqual([{ type: "missed", name: "." }, { type: "create", name: "a.txt" }, { type: "keepalive" }]);
  left.abort();
});

test("silence is filled with keepalives, and nothing else is changed", async () => {
  async function* slow(): AsyncGenerator<ExecProgress> {
    yield { type: "started", pid: 1 };
    await delay(70);
    yield { type: "output", stream: "stdout", base64: "", lostBytes: 0 };
  }
  const types: string[] = [];
  for await (const { type } of withKeepalives(slow(), 20)) types.push(type);
  expect(types[0]).toBe("started");
  expect(types.at(-1)).toBe("output");
  expect(types.slice(1, -1)).toContain("keepalive");
});

test("a command that is overdue is given up only when its guest does not answer", async () => {
  for (const [answers, seen] of [
    [[true, false], 2],
    [[false], 1],
  ] as const) {
    let asked = 0;
    let release = (): void => {};
    async function* silent(): AsyncGenerator<never> {
      yield* await new Promise<never[]>((resolve) => (release = () => resolve([])));
    }
    const ways = {
      isAlive: () => Promise.resolve(answers[asked++] ?? false),
      giveUp: () => release(),
    };
    for await (const _ of untilOverdue(silent(), 1, ways, 20)) throw new Error("nothing was to come");
    expect(asked).toBe(seen);
  }
});
