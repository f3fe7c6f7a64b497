import type { IncomingMessage } from "node:http";
import { CONNECT_END_FLAG, decodeEnvelopes, encodeEnvelope, type ProcessEvent } from "@torpor/protocol";
import type { HostClient } from "../host/host-client.ts";
import type { OwnedMachine } from "../host/owned-machine.ts";
import { GuestClient } from "./guest-client.ts";
import { countOutput, NOTHING, unbrokenEvents } from "./unbroken-events.ts";

/**
 * What is passed on of the agent's answers to E2B's clients who start a process, or connect to one: undefined for an answer
 * that is no stream of a process.
 */
export function unbrokenStarts(
  host: HostClient,
  machine: OwnedMachine,
  by: "start" | "connect",
): (answer: IncomingMessage, signal: AbortSignal) => AsyncIterable<Uint8Array> | undefined {
  return (answer, signal) => {
    const { statusCode, headers } = answer;
    const isStream = statusCode === 200 && headers["content-type"]?.startsWith("application/connect+json");
    return isStream === true ? unbrokenStart(answer, new GuestClient(host, machine), signal, by) : undefined;
  };
}

/**
 * The stream of a process that E2B's client started or connected to, as its agent sends it; one that a snapshot, a fork or a
 * pause cuts off is gone on with where it broke, and holds its process up from then on as before.
 *
 * @throws what cut it off when it cannot be gone on with: also when more output was on its way than the agent keeps
 */
export async function* unbrokenStart(
  answer: IncomingMessage,
  guest: GuestClient,
  signal: AbortSignal,
  by: "start" | "connect",
): AsyncGenerator<Uint8Array> {
  const has = { ...NOTHING };
  let pid: number | undefined;
  let isOver = false;
  let cut: unknown;
  try {
    for await (const { flags, json } of decodeEnvelopes(answer)) {
      const { event } = json as { event?: ProcessEvent };
      isOver ||= (flags & CONNECT_END_FLAG) !== 0 || event?.end !== undefined;
      const start = event?.start;
      // An agent of an earlier version, in an image, does not say where the stream of one who connects begins.
      if (by === "start" || start?.torpor?.from !== undefined) pid ??= start?.pid;
      Object.assign(has, start?.torpor?.from);
      if (event !== undefined) countOutput(has, event);
      yield encodeEnvelope(flags, event === undefined ? json : { event: withoutOurs(event) });
    }
    if (isOver) return;
    cut = new Error("the agent ended the stream of a process without its last message");
  } catch (error) {
    cut = error;
  }
  if (pid === undefined || isOver || !(await guest.interruptions(signal).pass(cut))) throw cut;
  for await (const event of unbrokenEvents(
    guest,
    { left: { pid, has, isStarter: by === "start" } },
    signal,
  )) {
    if ((event.data?.torpor?.lostBytes ?? 0) > 0) throw cut;
    yield encodeEnvelope(0, { event: withoutOurs(event) });
    if (event.end !== undefined) yield encodeEnvelope(CONNECT_END_FLAG, endOf(event.end));
  }
}

/** An event as E2B has it. */
function withoutOurs({ start, data, end, ...event }: ProcessEvent): ProcessEvent {
  const without = <T extends { torpor?: unknown }>({ torpor: _ours, ...rest }: T): Omit<T, "torpor"> => rest;
  return {
    ...event,
    ...(start === undefined ? {} : { start: without(start) }),
    ...(data === undefined ? {} : { data: without(data) }),
    ...(end === undefined ? {} : { end: without(end) }),
  };
}

/** What follows the end of a process in its stream: that its time limit was over is an error there. */
function endOf({ torpor }: NonNullable<ProcessEvent["end"]>): object {
  if (torpor?.outcome !== "timed_out") return {};
  const message = "the process ran for longer than its limit and was killed";
  return { error: { code: "deadline_exceeded", message } };
}
