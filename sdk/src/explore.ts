import { TorporError } from "./errors.ts";
import type { ForkOptions, ForkResult } from "./fork-sandbox.ts";

export interface ExploreOptions extends Omit<ForkOptions, "count" | "idempotencyKey"> {
  /** Attempts that run at once; default all. */
  concurrency?: number | undefined;
}

/** The best of several attempts. */
export interface Exploration<Sandbox, Candidate> {
  /** The fork in which it was made, still running: yours to destroy. */
  winner: Sandbox;
  candidate: Candidate;
  index: number;
  score: number;
  /** Of every candidate, in their order; null for one whose attempt failed. */
  scores: (number | null)[];
  /** What the attempts threw, and forks that could not be made. */
  failures: unknown[];
}

interface Scored<Sandbox> {
  sandbox: Sandbox;
  index: number;
  score: number;
}

/**
 * Best of N: forks once a candidate, attempts each in its own fork, keeps the highest score and destroys the rest. An
 * attempt returns the score, a finite number; one that returns anything else failed. Of equal scores the earlier candidate wins.
 */
export async function explore<Sandbox extends { destroy(): Promise<boolean> }, Candidate>(
  fork: (options: ForkOptions) => Promise<ForkResult<Sandbox>>,
  candidates: readonly Candidate[],
  attempt: (sandbox: Sandbox, candidate: Candidate, index: number) => Promise<number>,
  { concurrency = candidates.length, ...forkOptions }: ExploreOptions,
): Promise<Exploration<Sandbox, Candidate>> {
  if (candidates.length === 0) {
    throw new TorporError("explore needs at least one candidate", { code: "invalid_request" });
  }
  const { children, failures: unmade } = await fork({ ...forkOptions, count: candidates.length });
  const failures: unknown[] = [...unmade];
  const scores: (number | null)[] = candidates.map(() => null);
  const kept: { best: Scored<Sandbox> | undefined } = { best: undefined };
  const work = [...candidates.entries()].slice(0, children.length);
  const drop = async (sandbox: Sandbox): Promise<void> => {
    await sandbox.destroy().catch((error: unknown) => failures.push(error)); // its TTL or its owner ends it later
  };
  const run = async (): Promise<void> => {
    for (let next = work.shift(); next !== undefined; next = work.shift()) {
      const [index, candidate] = next;
      const sandbox = children[index];
      if (sandbox === undefined) continue;
      try {
        forkOptions.signal?.throwIfAborted();
        const score = checkScore(await attempt(sandbox, candidate, index), index);
        scores[index] = score;
        const { best } = kept;
        const isBetter =
          best === undefined || score > best.score || (score === best.score && index < best.index);
        if (isBetter) kept.best = { sandbox, index, score };
        const loser = isBetter ? best?.sandbox : sandbox;
        if (loser !== undefined) await drop(loser);
      } catch (error) {
        failures.push(error);
        await drop(sandbox);
      }
    }
  };
  const workers = Math.max(1, Math.min(concurrency, work.length));
  await Promise.all(Array.from({ length: workers }, run));
  const { best } = kept;
  if (forkOptions.signal?.aborted === true) {
    if (best !== undefined) await drop(best.sandbox);
    forkOptions.signal.throwIfAborted();
  }
  if (best === undefined) {
    throw new TorporError(`none of ${candidates.length} attempts came to a score`, {
      code: "no_attempt_scored",
      cause: failures[0],
    });
  }
  const candidate = candidates[best.index] as Candidate;
  return { winner: best.sandbox, candidate, index: best.index, score: best.score, scores, failures };
}

/** Attempts written in JavaScript return anything; compared, `undefined`, text and objects would make some winner. */
function checkScore(score: unknown, index: number): number {
  if (typeof score === "number" && Number.isFinite(score)) return score;
  const found = typeof score === "number" ? String(score) : score === null ? "null" : typeof score;
  throw new TypeError(
    `the attempt of candidate ${index} returned ${found}; return the score, a finite number, or throw`,
  );
}
