import { createHash } from "node:crypto";
import type { IncomingMessage } from "node:http";
import { setTimeout as delay } from "node:timers/promises";
import { afterEach, describe, expect, test } from "vitest";
import { eventually } from "../src/eventually.ts";
import { useInstance } from "../src/use-instance.ts";

/** Prints 1..N, one a line, with a pause of 1 ms after every hundred, then its own exit code. */
const counter = (upTo: number): string =>
  `import sys, time\nfor n in range(1, ${upTo} + 1):\n    print(n, flush=n % 10 == 0)\n    if n % 100 == 0: time.sleep(0.001)\nsys.exit(7)`;

const numbers = (upTo: number): string => Array.from({ length: upTo }, (_, n) => `${n + 1}\n`).join("");

interface Event {
  type: string;
  data?: string;
  [field: string]: unknown;
}

/** An NDJSON stream of a command, as it comes. */
class Stream {
  readonly stdout: Buffer[] = [];
  bytes = 0;
  end: Event | undefined;
  execId = "";
  /** Longest silence between two pieces of output, milliseconds. */
  longestSilenceMs = 0;
  readonly done: Promise<void>;

  constructor(incoming: IncomingMessage) {
    this.done = this.#read(incoming);
    this.done.catch(() => {});
  }

  async #read(incoming: IncomingMessage): Promise<void> {
    let rest = "";
    let last = performance.now();
    for await (const chunk of incoming as AsyncIterable<Buffer>) {
      rest += chunk.toString("utf8");
      const lines = rest.split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) {
        const event = JSON.parse(line) as Event;
        if (event.type === "start") this.execId = String(event["exec_id"]);
        if (event.type === "end") this.end = event;
        if (event.type !== "stdout") continue;
        expect(event["dropped_bytes"]).toBeUndefined();
        const data = Buffer.from(event.data ?? "", "base64");
        this.stdout.push(data);
        this.bytes += data.length;
        this.longestSilenceMs = Math.max(this.longestSilenceMs, performance.now() - last);
        last = performance.now();
      }
    }
  }

  text(): string {
    return Buffer.concat(this.stdout).toString("utf8");
  }
}

describe("a command goes on, and whoever waits for it too", () => {
  const torpor = useInstance({ server: true, pool: 1, shells: 1 });

  afterEach(() => torpor().host.endAll());

  const post = async (path: string, body?: unknown): Promise<Record<string, unknown>> => {
    const answer = await torpor().api.call(path, { method: "POST", body: body ?? {}, timeoutMs: 300_000 });
    expect(answer.status, `${path}: ${answer.body.toString("utf8")}`).toBeLessThan(300);
    return answer.json as Record<string, unknown>;
  };
  const create = async (): Promise<string> =>
    String((await post("/v1/sandboxes", { template: "base", ttl_seconds: 600 }))["id"]);
  const exec = (id: string, body: object): Promise<Record<string, unknown>> =>
    post(`/v1/sandboxes/${id}/exec`, body);
  const stream = async (id: string, body: object): Promise<Stream> =>
    new Stream(
      await torpor().api.open(`/v1/sandboxes/${id}/exec`, {
        method: "POST",
        body,
        headers: { accept: "application/x-ndjson" },
      }),
    );
  const processes = async (id: string): Promise<Record<string, unknown>[]> =>
    (
      (await torpor().api.call(`/v1/sandboxes/${id}/processes`)).json as {
        items: Record<string, unknown>[];
      }
    ).items;

  test("through a snapshot, a fork and a pause: every number once, in order, and the exit code", async () => {
    const id = await create();
    const upTo = 400_000;
    const counting = await stream(id, { cmd: ["python3", "-c", counter(upTo)], timeout_seconds: 120 });
    await eventually("it counts on", () => counting.bytes > 50_000);
    expect((await torpor().api.call(`/v1/sandboxes/${id}/lifecycle`)).json).toMatchObject({
      holds: [{ kind: "exec", what: counting.execId }],
      last_activity: { kind: "exec", what: counting.execId },
    });
    const began = performance.now();
    await post(`/v1/sandboxes/${id}/snapshots`, { name: "while it counts" });
    const afterSnapshot = counting.bytes;
    await eventually("it counts on", () => counting.bytes > afterSnapshot + 50_000);
    const { children } = (await post(`/v1/sandboxes/${id}/fork`, { count: 1 })) as {
      children: { sandbox: { id: string } }[];
    };
    const child = children[0]?.sandbox.id ?? "";
    // The child's copy of it is listed by the same id, and nobody's leaving ends it.
    expect((await processes(child)).map((process) => process["exec_id"])).toEqual([counting.execId]);
    const silenceMs = Math.round(counting.longestSilenceMs);
    const afterFork = counting.bytes;
    await eventually("it counts on", () => counting.bytes > afterFork + 50_000);
    await post(`/v1/sandboxes/${id}/pause`);
    const paused = counting.bytes;
    await delay(1_500);
    await post(`/v1/sandboxes/${id}/resume`);
    await eventually("it counts on", () => counting.bytes > paused + 50_000);
    expect(counting.end).toBeUndefined();
    await counting.done;
    process.stdout.write(
      `counted to ${upTo} in ${Math.round(performance.now() - began)} ms; longest silence through snapshot and fork ${silenceMs} ms\n`,
    );
    expect(counting.text() === numbers(upTo)).toBe(true);
    expect(counting.end).toMatchObject({
      outcome: "exited",
      exit_code: 7,
      truncated: false,
      stdout_bytes: counting.bytes,
    });
    await eventually("the child's has ended", async () => (await processes(child)).length === 0, 60_000);
    const end = await torpor().api.call(`/v1/sandboxes/${child}/processes/${counting.execId}/output`);
    expect(end.body.toString("utf8").trim().split("\n").at(-1)).toContain('"exit_code":7');
  });

  test("20 MiB of random output come through a snapshot byte by byte, into one JSON answer", async () => {
    const id = await create();
    await exec(id, { cmd: "head -c 20971520 /dev/urandom > /tmp/random" });
    const hash = String((await exec(id, { cmd: "sha256sum < /tmp/random" }))["stdout"]).slice(0, 64);
    const sending = exec(id, {
      cmd: "for part in $(seq 0 39); do dd if=/tmp/random bs=512k skip=$part count=1 2>/dev/null; sleep 0.05; done; echo done >&2",
      encoding: "base64",
      max_output_bytes: 33_554_432,
      timeout_seconds: 120,
    });
    await delay(600);
    await post(`/v1/sandboxes/${id}/snapshots`, { name: "while it sends" });
    const result = await sending;
    expect(result).toMatchObject({
      outcome: "exited",
      exit_code: 0,
      truncated: false,
      stdout_bytes: 20_971_520,
    });
    const bytes = Buffer.from(String(result["stdout"]), "base64");
    expect(createHash("sha256").update(bytes).digest("hex")).toBe(hash);
    expect(Buffer.from(String(result["stderr"]), "base64").toString("utf8")).toBe("done\n");
  });

  test("standard input that is written during snapshots arrives whole and once", async () => {
    const id = await create();
    const { exec_id: execId } = await exec(id, {
      cmd: "cat > /tmp/fed; sha256sum < /tmp/fed > /tmp/sum",
      keep_stdin_open: true,
      background: true,
    });
    const hash = createHash("sha256");
    const snapshots = (async () => {
      for (const name of ["a", "b"]) {
        await post(`/v1/sandboxes/${id}/snapshots`, { name });
        await delay(200);
      }
    })();
    for (let piece = 0; piece < 40; piece += 1) {
      const bytes = Buffer.alloc(100_000, `${piece},`);
      hash.update(bytes);
      const answer = await torpor().api.call(`/v1/sandboxes/${id}/processes/${String(execId)}/stdin`, {
        method: "POST",
        body: bytes,
        headers: { "content-type": "application/octet-stream" },
      });
      expect(answer.status, answer.body.toString("utf8")).toBe(200);
    }
    await snapshots;
    await torpor().api.call(`/v1/sandboxes/${id}/processes/${String(execId)}/stdin?close=true`, {
      method: "POST",
      body: Buffer.alloc(0),
      headers: { "content-type": "application/octet-stream" },
    });
    await eventually("it is so", async () => (await processes(id)).length === 0);
    expect((await exec(id, { cmd: "cat /tmp/sum" }))["stdout"]).toBe(`${hash.digest("hex")}  -\n`);
  });

  test("the time in which a sandbox is paused counts for no command's limit", async () => {
    const id = await create();
    const sleeping = exec(id, { cmd: "sleep 4; echo slept", timeout_seconds: 6 });
    await delay(500);
    await post(`/v1/sandboxes/${id}/pause`);
    await delay(8_000);
    await post(`/v1/sandboxes/${id}/resume`);
    expect(await sleeping).toMatchObject({ outcome: "exited", exit_code: 0, stdout: "slept\n" });
  });

  test("hibernated while it runs: its caller is told at once, it goes on after the wake and is followed by its id", async () => {
    const id = await create();
    const counting = exec(id, {
      cmd: "for n in $(seq 1 60); do echo $n; sleep 0.1; done; echo out > /tmp/done; exit 5",
      timeout_seconds: 30,
    });
    await delay(1_000);
    await post(`/v1/sandboxes/${id}/hibernate`);
    const lost = await counting;
    expect(lost).toMatchObject({ outcome: "lost", exit_code: null });
    expect(lost["message"]).toMatch(/hibernated while the command ran; the command goes on/);
    expect(String(lost["stdout"])).toMatch(/^1\n2\n3\n/);
    await delay(1_000);
    await post(`/v1/sandboxes/${id}/wake`);
    const again = new Stream(
      await torpor().api.open(`/v1/sandboxes/${id}/processes/${String(lost["exec_id"])}/output`),
    );
    await again.done;
    expect(again.text()).toBe(numbers(60));
    expect(again.end).toMatchObject({ outcome: "exited", exit_code: 5 });
    expect((await exec(id, { cmd: "cat /tmp/done" }))["stdout"]).toBe("out\n");
  });

  test("what waits when a sandbox is hibernated waits on after the wake for as long as was left", async () => {
    const id = await create();
    const { exec_id: execId } = await exec(id, {
      cmd: "python3 -c 'import time; time.sleep(8)'; echo over",
      background: true,
      timeout_seconds: 11,
    });
    await delay(1_000);
    await post(`/v1/sandboxes/${id}/hibernate`);
    await delay(12_000);
    const woken = (await post(`/v1/sandboxes/${id}/wake`)) as {
      attestation: { steps: { name: string; detail?: string }[] };
    };
    const wokenAt = performance.now();
    expect(woken.attestation.steps.find(({ name }) => name === "monotonic_clock")?.detail).toMatch(/^held: /);
    const rest = new Stream(
      await torpor().api.open(`/v1/sandboxes/${id}/processes/${String(execId)}/output`),
    );
    await rest.done;
    expect(rest.end).toMatchObject({ outcome: "exited", exit_code: 0 });
    expect(rest.text()).toBe("over\n");
    const leftMs = performance.now() - wokenAt;
    expect(leftMs).toBeGreaterThan(5_000);
    expect(leftMs).toBeLessThan(9_000);
  });

  test("a client that leaves during a snapshot still ends its command", async () => {
    const id = await create();
    const left = new AbortController();
    const incoming = await torpor().api.open(`/v1/sandboxes/${id}/exec`, {
      method: "POST",
      body: { cmd: "echo begun; sleep 100", timeout_seconds: 200 },
      headers: { accept: "application/x-ndjson" },
      signal: left.signal,
    });
    incoming.on("error", () => {});
    incoming.resume();
    await eventually("it is so", async () => (await processes(id)).length === 1);
    const snapshot = post(`/v1/sandboxes/${id}/snapshots`, { name: "as it leaves" });
    await eventually(
      "the snapshot has begun",
      async () => (await torpor().host.get(id)).state === "snapshotting",
    );
    await delay(100);
    left.abort();
    await snapshot;
    await eventually("the command has ended", async () => (await processes(id)).length === 0, 10_000);
  });
});
