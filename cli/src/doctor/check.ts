/** What one check of `torpor doctor` found. */
export interface CheckResult {
  /** Stable name, for programs. */
  name: string;
  /** `fail` only for what Torpor cannot do without. */
  status: "ok" | "warn" | "fail";
  /** What is there. */
  found: string;
  /** Why it matters. */
  why: string;
  /** What to do; null when there is nothing to do. */
  fix: string | null;
}

/** A check: `probe` looks, and answers with the rest. One that throws counts as failed. */
export interface Check {
  name: string;
  why: string;
  /** Whether Torpor cannot do without: else the worst it can be is a warning. */
  required: boolean;
  probe: () => Promise<Finding>;
}

/** `ok` with what was found; else what was found and what to do. */
export type Finding =
  | { ok: true; found: string }
  | { ok: false; found: string; fix: string; severity?: "warn" };

/** Runs all checks at once; each has 15 s. The order of the answer is the order of the checks. */
export async function runChecks(checks: readonly Check[], timeoutMs = 15_000): Promise<CheckResult[]> {
  return Promise.all(
    checks.map(async ({ name, why, required, probe }): Promise<CheckResult> => {
      const bad = required ? "fail" : "warn";
      try {
        const finding = await withTimeout(probe(), timeoutMs);
        if (finding.ok) return { name, status: "ok", found: finding.found, why, fix: null };
        return { name, status: finding.severity ?? bad, found: finding.found, why, fix: finding.fix };
      } catch (error) {
        const found = `could not be checked: ${error instanceof Error ? error.message : String(error)}`;
        return {
          name,
          status: bad,
          found,
          why,
          fix: "Look into the message; the check itself may be wrong on this machine.",
        };
      }
    }),
  );
}

async function withTimeout<T>(work: Promise<T>, timeoutMs: number): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => reject(new Error(`no answer within ${timeoutMs / 1000} s`)), timeoutMs);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}
