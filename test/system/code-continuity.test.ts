import { setTimeout as delay } from "node:timers/promises";
import { beforeAll, describe, expect, test } from "vitest";
import { eventually } from "../src/eventually.ts";
import { useInstance } from "../src/use-instance.ts";

interface Line {
  type: string;
  text?: string;
  [field: string]: unknown;
}

/** An NDJSON stream of code, as it comes. */
class Stream {
  readonly lines: Line[] = [];
  readonly done: Promise<void>;

  constructor(incoming: AsyncIterable<Buffer>) {
    this.done = this.#read(incoming);
    this.done.catch(() => {});
  }

  async #read(incoming: AsyncIterable<Buffer>): Promise<void> {
    let rest = "";
    for await (const chunk of incoming) {
      rest += chunk.toString("utf8");
      const lines = rest.split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) this.lines.push(JSON.parse(line) as Line);
    }
  }

  of(type: string): Line[] {
    return this.lines.filter((line) => line.type === type);
  }

  get stdout(): string {
    return this.of("stdout")
      .map(({ text = "" }) => text)
      .join("");
  }
}

const numbers = (upTo: number): string => Array.from({ length: upTo }, (_, n) => `${n + 1}\n`).join("");

/** Prints 1..N in about N / 100 seconds, with a picture in the middle, and ends with a value. */
const counter = (upTo: number): string =>
  [
    "import time, base64",
    "from IPython.display import display, Image",
    "n = 0",
    `while n < ${upTo}:`,
    "    n += 1",
    "    print(n, flush=True)",
    `    if n == ${upTo / 2}: display(Image(data=base64.b64decode('iVBORw0KGgo='), format='png'))`,
    "    time.sleep(0.01)",
    "{'counted': n}",
  ].join("\n");

describe("code goes on, and whoever waits for it too", () => {
  const torpor = useInstance({ server: true });
  let id: string;

  const post = async (path: string, body?: unknown): Promise<Record<string, unknown>> => {
    const answer = await torpor().api.call(path, { method: "POST", body: body ?? {}, timeoutMs: 300_000 });
    expect(answer.status, `${path}: ${answer.body.toString("utf8")}`).toBeLessThan(300);
    return answer.json as Record<string, unknown>;
  };
  const run = (sandbox: string, code: string, more: object = {}): Promise<Record<string, unknown>> =>
    post(`/v1/sandboxes/${sandbox}/code`, { code, ...more });
  const text = async (sandbox: string, code: string): Promise<string> => {
    const { results } = (await run(sandbox, code)) as { results: { text: string }[] };
    return results[0]?.text ?? "";
  };
  const open = async (code: string, signal?: AbortSignal): Promise<Stream> => {
    const incoming = await torpor().api.open(`/v1/sandboxes/${id}/code`, {
      method: "POST",
      body: { code },
      headers: { accept: "application/x-ndjson" },
      ...(signal === undefined ? {} : { signal }),
    });
    incoming.on("error", () => {});
    return new Stream(incoming);
  };

  beforeAll(async () => {
    ({ id } = (await post("/v1/sandboxes", {
      template: "code-interpreter",
      persistent: true,
      tenant: "acme",
      ttl_seconds: 900,
    })) as { id: string });
  });

  test("through a snapshot, a fork and a pause: every line once, in order, the picture and the result; in the copy unheard", async () => {
    const counting = await open(counter(1_000));
    await eventually("it counts", () => counting.of("stdout").length > 100);
    const began = performance.now();
    await post(`/v1/sandboxes/${id}/snapshots`, { name: "while it counts" });
    const snapshotMs = Math.round(performance.now() - began);
    const afterSnapshot = counting.of("stdout").length;
    await eventually("it counts on", () => counting.of("stdout").length > afterSnapshot + 50);
    const { children } = (await post(`/v1/sandboxes/${id}/fork`, { count: 1 })) as {
      children: { sandbox: { id: string } }[];
    };
    const child = children[0]?.sandbox.id ?? "";
    const afterFork = counting.of("stdout").length;
    await eventually("it counts on", () => counting.of("stdout").length > afterFork + 50);
    await post(`/v1/sandboxes/${id}/pause`);
    const paused = counting.of("stdout").length;
    await delay(300);
    await post(`/v1/sandboxes/${id}/resume`);
    await eventually("it counts on", () => counting.of("stdout").length > paused + 50);
    expect(counting.of("result")).toHaveLength(counting.stdout.includes("500\n") ? 1 : 0);
    await counting.done;
    process.stdout.write(`a snapshot while code ran took ${snapshotMs} ms\n`);
    expect(counting.stdout).toBe(numbers(1_000));
    expect(counting.of("error")).toEqual([]);
    expect(counting.of("result")).toMatchObject([
      { png: expect.stringMatching(/^iVBOR/), is_main_result: false },
      { text: "{'counted': 1000}", is_main_result: true },
    ]);
    expect(counting.of("number_of_executions")).toHaveLength(1);
    // It waits for its turn behind the copy's own counting, which nobody has interrupted.
    expect(await text(child, "n")).toBe("1000");
    await torpor().api.call(`/v1/sandboxes/${child}`, { method: "DELETE" });
  });

  test("output of many megabytes comes through a snapshot whole, into one answer", async () => {
    const sending = run(
      id,
      "import time\nfor k in range(100):\n    print(str(k % 10) * 99_999)\n    time.sleep(0.02)",
    );
    await delay(600);
    await post(`/v1/sandboxes/${id}/snapshots`, { name: "while it sends" });
    const { stdout, error } = (await sending) as { stdout: string; error: unknown };
    expect(error).toBeNull();
    expect(
      stdout === Array.from({ length: 100 }, (_, k) => `${String(k % 10).repeat(99_999)}\n`).join(""),
    ).toBe(true);
  });

  test("a client that leaves interrupts it, also when it leaves during a snapshot", async () => {
    for (const isSnapshotted of [false, true]) {
      await run(id, "caught = None");
      const left = new AbortController();
      const waiting = await open(
        "import time\nprint('begun', flush=True)\ntry:\n    time.sleep(300)\nexcept BaseException as e:\n    caught = type(e).__name__",
        left.signal,
      );
      await eventually("it has begun", () => waiting.stdout === "begun\n");
      let snapshot: Promise<unknown> | undefined;
      if (isSnapshotted) {
        snapshot = post(`/v1/sandboxes/${id}/snapshots`, { name: "as it leaves" });
        await eventually(
          "the snapshot has begun",
          async () => (await torpor().host.get(id)).state === "snapshotting",
        );
        await delay(50);
      }
      const began = performance.now();
      left.abort();
      expect(await text(id, "caught")).toBe("KeyboardInterrupt");
      expect(performance.now() - began).toBeLessThan(15_000);
      await snapshot;
    }
  });

  test("hibernated while it runs: its caller is told at once, and after the wake it goes on, with its variables", async () => {
    const counting = await open(counter(400));
    await eventually("it counts", () => counting.of("stdout").length > 50);
    await post(`/v1/sandboxes/${id}/hibernate`);
    await counting.done;
    const [lost] = counting.of("error");
    expect(lost).toMatchObject({ name: "ExecutionLost" });
    expect(lost?.["value"]).toMatch(
      /was hibernated while the code ran; the code goes on when the sandbox wakes/,
    );
    const told = counting.of("stdout").length;
    expect(told).toBeLessThan(400);
    await post(`/v1/sandboxes/${id}/wake`);
    expect(await text(id, "n")).toBe("400");
  });

  test("its time limit counts no pause", async () => {
    const sleeping = run(id, "import time\ntime.sleep(2)\n'slept'", { timeout_seconds: 5 });
    await delay(500);
    await post(`/v1/sandboxes/${id}/pause`);
    await delay(5_500);
    await post(`/v1/sandboxes/${id}/resume`);
    expect(await sleeping).toMatchObject({ error: null, results: [{ text: "slept" }] });
    const over = (await run(id, "while True: pass", { timeout_seconds: 1 })) as { error: unknown };
    expect(over.error).toMatchObject({ name: "TimeoutError" });
    expect(await text(id, "'free'")).toBe("free");
  });
});
