/** Silence that the guest of overdue work is granted before it is asked whether it lives. */
const SILENCE_MS = 10_000;

export interface OverdueWays {
  /** Whether the work may still come to its end. */
  isAlive: () => Promise<boolean>;
  giveUp: () => void;
}

/**
 * Passes on what a command or code tells, and gives it up when it should be over and its guest says nothing and does not
 * answer: the guest keeps the time limit, but code inside that is root there can stop the guest. A caller who reads slowly is
 * no silence, and a sandbox that is paused may be so for as long as it likes.
 */
export async function* untilOverdue<T>(
  events: AsyncGenerator<T>,
  dueInMs: number,
  { isAlive, giveUp }: OverdueWays,
  silenceMs = SILENCE_MS,
): AsyncGenerator<T> {
  let waitingSince: number | undefined;
  let isOver = false;
  const look = async (): Promise<void> => {
    const silentForMs = waitingSince === undefined ? 0 : performance.now() - waitingSince;
    let againInMs = silenceMs - silentForMs;
    if (againInMs <= 0) {
      const asked = waitingSince;
      const alive = await isAlive();
      if (isOver) return;
      if (!alive && waitingSince === asked) return giveUp();
      againInMs = silenceMs;
    }
    timer = setTimeout(() => void look(), againInMs);
  };
  let timer = setTimeout(() => void look(), dueInMs + silenceMs);
  try {
    for (;;) {
      waitingSince = performance.now();
      const next = await events.next();
      waitingSince = undefined;
      if (next.done === true) return;
      yield next.value;
    }
  } finally {
    isOver = true;
    clearTimeout(timer);
    await events.return(undefined);
  }
}
