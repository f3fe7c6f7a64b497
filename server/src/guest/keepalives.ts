/** Longer than the guest's own interval: it sends its keepalives itself as long as it runs. */
const EVERY_MS = 20_000;

/** Adds keepalives while nothing comes, as from a sandbox that is paused, so that a client that limits silence waits on. */
export async function* withKeepalives<T extends { type: string }>(
  progress: AsyncGenerator<T>,
  everyMs = EVERY_MS,
): AsyncGenerator<T | { type: "keepalive" }> {
  let next = progress.next();
  next.catch(() => {}); // looked at below, also when it fails before that
  try {
    for (;;) {
      let timer: NodeJS.Timeout | undefined;
      const silence = new Promise<undefined>((resolve) => {
        timer = setTimeout(() => resolve(undefined), everyMs);
      });
      const step = await Promise.race([next, silence]).finally(() => clearTimeout(timer));
      if (step === undefined) {
        yield { type: "keepalive" };
        continue;
      }
      if (step.done === true) return;
      yield step.value;
      next = progress.next();
      next.catch(() => {});
    }
  } finally {
    await progress.return(undefined);
  }
}
