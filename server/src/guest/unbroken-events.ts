import type { ProcessEvent, StartRequest } from "@torpor/protocol";
import type { GuestClient, ProcessSelector, StreamPosition } from "./guest-client.ts";

/**
 * A process that is started, one that is followed, or one whose stream broke when that much of it had come: the one of whoever
 * started it, or of another who had connected.
 */
export type Followed =
  | { start: StartRequest }
  | { process: ProcessSelector }
  | { left: { pid: number; has: StreamPosition; isStarter: boolean } };

/** The beginning of every stream. */
export const NOTHING: StreamPosition = { stdout: 0, stderr: 0, pty: 0 };

/** How long the guest is tried to be told that nobody follows a command any more, milliseconds. */
const FAREWELL_WITHIN_MS = 60_000;

/**
 * The events of a process over as many streams as it takes: a long one comes in parts, and one that a snapshot, a fork or a
 * pause cuts off is gone on with where it broke. One that is started so loses nothing and repeats nothing; its process is
 * held up while nobody reads. Throws what cut it off when it cannot be gone on with.
 */
export async function* unbrokenEvents(
  guest: GuestClient,
  followed: Followed,
  signal: AbortSignal,
): AsyncGenerator<ProcessEvent> {
  const left = "left" in followed ? followed.left : undefined;
  const has = { ...(left?.has ?? NOTHING) };
  const interruptions = guest.interruptions(signal);
  let pid = left?.pid;
  let isAttached = false;
  let cut: { by: unknown } | undefined;
  try {
    for (;;) {
      let isInParts = false;
      try {
        for await (const event of open(guest, followed, pid !== undefined, has, signal)) {
          isAttached = true;
          cut = undefined;
          interruptions.passed();
          if (event.continue !== undefined) {
            isInParts = true;
            break; // the guest ends this stream when the next part is asked for
          }
          if (event.start === undefined) {
            countOutput(has, event);
            yield event;
            if (event.end !== undefined) return;
          } else if (pid === undefined) {
            pid = event.start.pid;
            yield event;
          }
        }
        if (!isInParts) throw new Error("the guest ended the stream without an end event");
        isAttached = false;
      } catch (error) {
        isAttached = false;
        // Being refused when it wants to go on explains less than what cut it off.
        cut ??= { by: error };
        if (!(await interruptions.pass(error))) throw cut.by;
      }
    }
  } finally {
    if (signal.aborted && !isAttached && pid !== undefined && "start" in followed)
      void sayFarewell(guest, followed.start, has);
  }
}

function open(
  guest: GuestClient,
  followed: Followed,
  isStarted: boolean,
  has: StreamPosition,
  signal: AbortSignal,
): AsyncGenerator<ProcessEvent> {
  if ("left" in followed) {
    const { pid, isStarter } = followed.left;
    return guest.connect({ pid }, { from: has, hold: isStarter, lossless: !isStarter }, { signal });
  }
  if (!("start" in followed)) return guest.connect(followed.process, { from: has, hold: false }, { signal });
  const execId = followed.start.torpor?.execId;
  if (!isStarted || execId === undefined) return guest.start(followed.start, { signal, repeatable: true });
  return guest.connect({ torpor: { execId } }, { from: has, hold: true }, { signal });
}

/** Adds what an event brings of each stream. */
export function countOutput(has: StreamPosition, { data }: ProcessEvent): void {
  for (const stream of ["stdout", "stderr", "pty"] as const) {
    const base64 = data?.[stream];
    if (base64 !== undefined)
      has[stream] += Buffer.byteLength(base64, "base64") + (data?.torpor?.lostBytes ?? 0);
  }
}

/** The client left while no stream was open: one is opened and left, so that the guest does what it does when clients leave. */
async function sayFarewell(
  guest: GuestClient,
  { torpor }: StartRequest,
  from: StreamPosition,
): Promise<void> {
  if (torpor?.execId === undefined || torpor.killOnDisconnect !== true) return;
  const signal = AbortSignal.timeout(FAREWELL_WITHIN_MS);
  try {
    if (!(await guest.interruptions(signal).pass(undefined))) return;
    const events = guest.connect({ torpor: { execId: torpor.execId } }, { from, hold: true }, { signal });
    await events.next();
    await events.return(undefined);
  } catch {
    // The guest ends it by itself, half a minute later.
  }
}
