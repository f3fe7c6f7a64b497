import { Readable } from "node:stream";
import type { IncomingMessage } from "node:http";
import { CONNECT_END_FLAG, decodeEnvelopes, encodeEnvelope, type ProcessEvent } from "@torpor/protocol";
import { describe, expect, test } from "vitest";
import { unbrokenStart } from "../src/guest/unbroken-start.ts";
import type { GuestClient, StreamPosition } from "../src/guest/guest-client.ts";

const text = (data: string): string => Buffer.from(data).toString("base64");
const START = { event: { start: { pid: 41 } } };
const out = (data: string) => ({ event: { data: { stdout: text(data) } } });

/** An answer that breaks off behind these messages. */
function broken(...messages: object[]): IncomingMessage {
  async function* chunks(): AsyncGenerator<Uint8Array> {
    for (const message of messages) yield encodeEnvelope(0, message);
    await Promise.resolve();
    throw new Error("the connection was reset");
  }
  return Readable.from(chunks()) as IncomingMessage;
}

interface Asked {
  process: unknown;
  from: StreamPosition;
  hold: boolean;
  lossless?: boolean;
}

/** An agent that has these events for whoever goes on, and what it was asked. */
function agent(events: ProcessEvent[], passes = true): { guest: GuestClient; asked: Asked[] } {
  const asked: Asked[] = [];
  const guest = {
    interruptions: () => ({ passed: () => {}, pass: () => Promise.resolve(passes) }),
    async *connect(process: unknown, { from, ...how }: Omit<Asked, "process">) {
      asked.push({ process, from: { ...from }, ...how });
      await Promise.resolve();
      yield { start: { pid: 41 } };
      yield* events;
    },
  };
  return { guest: guest as unknown as GuestClient, asked };
}

async function read(
  answer: IncomingMessage,
  guest: GuestClient,
  by: "start" | "connect" = "start",
): Promise<[number, unknown][]> {
  const seen: [number, unknown][] = [];
  const stream = unbrokenStart(answer, guest, new AbortController().signal, by);
  for await (const { flags, json } of decodeEnvelopes(stream)) seen.push([flags, json]);
  return seen;
}

const ENDED = {
  exitCode: 0,
  exited: true,
  status: "exit status 0",
  torpor: { outcome: "exited" },
} as unknown as NonNullable<ProcessEvent["end"]>;

describe("the stream of a start that is cut off", () => {
  test("goes on behind what has come, in E2B's form", async () => {
    const { guest, asked } = agent([{ data: { stdout: text("three") } }, { end: ENDED }]);
    expect(await read(broken(START, out("one"), out("two")), guest)).toEqual([
      [0, START],
      [0, out("one")],
      [0, out("two")],
      [0, out("three")],
      [0, { event: { end: { exitCode: 0, exited: true, status: "exit status 0" } } }],
      [CONNECT_END_FLAG, {}],
    ]);
    expect(asked).toEqual([
      { process: { pid: 41 }, from: { stdout: 6, stderr: 0, pty: 0 }, hold: true, lossless: false },
    ]);
  });

  test("of one who had connected goes on behind what was before it and what has come", async () => {
    const from = { stdout: 100, stderr: 20, pty: 0 };
    const { guest, asked } = agent([{ data: { stdout: text("two") } }, { end: ENDED }]);
    const connected = { event: { start: { pid: 41, torpor: { from } } } };
    expect((await read(broken(connected, out("one")), guest, "connect")).slice(0, 3)).toEqual([
      [0, START],
      [0, out("one")],
      [0, out("two")],
    ]);
    expect(asked).toEqual([
      { process: { pid: 41 }, from: { stdout: 103, stderr: 20, pty: 0 }, hold: false, lossless: true },
    ]);
    const early = agent([]); // an agent of before it said where such a stream begins
    await expect(read(broken(START, out("one")), early.guest, "connect")).rejects.toThrow(/reset/);
    expect(early.asked).toEqual([]);
  });

  test("says that the time limit was over as the agent itself does", async () => {
    const end = { exitCode: -1, exited: false, status: "signal: killed", torpor: { outcome: "timed_out" } };
    const { guest } = agent([{ end } as unknown as ProcessEvent]);
    expect((await read(broken(START), guest)).at(-1)).toEqual([
      CONNECT_END_FLAG,
      { error: { code: "deadline_exceeded", message: expect.stringMatching(/limit/) as string } },
    ]);
  });

  test("stays cut off where output is lost, where its sandbox does not come back, and before it has begun", async () => {
    const lost = agent([{ data: { stdout: text("late"), torpor: { lostBytes: 5 } } }]);
    await expect(read(broken(START), lost.guest)).rejects.toThrow(/reset/);
    await expect(read(broken(START), agent([], false).guest)).rejects.toThrow(/reset/);
    const early = agent([]);
    await expect(read(broken(), early.guest)).rejects.toThrow(/reset/);
    expect(early.asked).toEqual([]);
  });
});
