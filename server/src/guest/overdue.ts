import type { ProcessEvent } from "@torpor/protocol";

/** Silence that an overdue command's guest is granted before it is given up. */
const SILENCE_MS = 10_000;

/**
 * Passes a command's events on and calls `giveUp` when it should be over and its guest says nothing: the guest keeps the
 * time limit, but code inside that is root there can stop the guest. A caller who reads slowly is no silence.
 */
export async function* untilOverdue(
  events: AsyncGenerator<ProcessEvent>,
  dueInMs: number,
  giveUp: () => void,
): AsyncGenerator<ProcessEvent> {
  let waitingSince: number | undefined;
  const look = (): void => {
    const silentForMs = waitingSince === undefined ? 0 : performance.now() - waitingSince;
    if (silentForMs >= SILENCE_MS) giveUp();
    else timer = setTimeout(look, SILENCE_MS - silentForMs);
  };
  let timer = setTimeout(look, dueInMs + SILENCE_MS);
  try {
    for (;;) {
      waitingSince = performance.now();
      const next = await events.next();
      waitingSince = undefined;
      if (next.done === true) return;
      yield next.value;
    }
  } finally {
    clearTimeout(timer);
    await events.return(undefined);
  }
}
