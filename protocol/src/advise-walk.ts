import {
  type Advice,
  type AdviceFacts,
  type AdviceSettings,
  type AdviceStep,
  type MeasuredTimes,
  type Question,
  QUESTIONS,
  type Shape,
} from "./advise.ts";
import { breakEven, type BreakEven, type Machinery } from "./estimate.ts";
import { LIMITS } from "./limits.ts";
import type { Prices } from "./price.ts";
import { assumedUse, costsOf, DAY_SECONDS, type Pattern, patternOf, spanText } from "./policies.ts";
import { STATE_KINDS, type StateKind } from "./state.ts";
import type { Workload } from "./workload.ts";

/** What is known of the machine and the sandbox, beside the workload. */
export interface Known {
  template: string;
  cpu: number;
  memory_mb: number;
  disk_mb: number;
  times: MeasuredTimes;
  prices: Prices;
  /** Seen of the sandbox that is asked about. */
  seen?: { idle_gap_seconds?: number; use_seconds?: number } | undefined;
}

const DAYS_30 = 2_592_000;
/** A set-up that takes longer than this is felt by whoever waits. */
const SLOW_SETUP_SECONDS = 10;
/** A wake may cost its owner a hundredth of the time that it was idle for. */
const IDLE_PER_WAKE = 100;
const MIN_IDLE_SECONDS = 60;
const MAX_IDLE_SECONDS = 900;
const SESSION_TTL_SECONDS = 3_600;

/** Why a workload cannot be as it says it is; null when it can. */
export function impossible({
  uses_per_day: uses,
  idle_gap_seconds: gap = 0,
  use_seconds: use = 0,
}: Workload): string | null {
  if (uses === undefined || uses < 1) return null;
  const all = Math.floor(uses) * (use + gap) - gap;
  if (all <= DAY_SECONDS) return null;
  return `${uses} uses a day of ${use} s each and ${gap} s apart take ${Math.round(all)} s, and a day has ${DAY_SECONDS}`;
}

/**
 * Advises on the shape of a workload: walks the six questions in their order, and counts what each alternative costs. A pure
 * function: the same facts give the same advice.
 */
export function advise(workload: Workload, known: Known): Advice {
  const { facts, pattern } = factsOf(workload, known);
  const machinery = machineryOf(facts);
  const gaps = breakEven(machinery, known.prices);
  const walked = walk(workload, facts, gaps);
  const settings = settingsFor(walked.shape, workload, facts);
  return {
    ...walked,
    settings,
    lost: lostBy(walked.shape, settings, workload),
    notes: notesOn(walked.shape, workload, facts),
    costs: costsOf(pattern, machinery, known.prices, settings),
    break_even: gaps,
    facts,
  };
}

/** The size and the times of facts, as the estimator takes them. */
export function machineryOf(facts: AdviceFacts): Machinery {
  return {
    cpu: facts.cpu,
    memory_mb: facts.memory_mb,
    disk_mb: facts.disk_mb,
    image_bytes: facts.image_bytes.value,
    create_seconds: facts.create_seconds.value,
    setup_seconds: facts.setup_seconds,
    hibernate_seconds: facts.hibernate_seconds.value,
    wake_seconds: facts.wake_seconds.value,
  };
}

function factsOf(workload: Workload, known: Known): { facts: AdviceFacts; pattern: Pattern } {
  const { use_seconds: givenUse, idle_gap_seconds: givenGap, uses_per_day: uses } = workload;
  const seen = known.seen ?? {};
  const gap = givenGap ?? (uses === undefined ? seen.idle_gap_seconds : undefined);
  const use = givenUse ?? seen.use_seconds ?? assumedUse(gap, uses);
  const pattern = patternOf(use, gap, uses);
  const from = (givenGap ?? uses) !== undefined ? "given" : gap === undefined ? "assumed" : "measured";
  const facts: AdviceFacts = {
    ...known.times,
    template: known.template,
    cpu: known.cpu,
    memory_mb: known.memory_mb,
    disk_mb: known.disk_mb,
    setup_seconds: workload.setup_seconds ?? 0,
    use_seconds: use,
    idle_gap_seconds: pattern.gap,
    uses_per_day: (pattern.uses * DAY_SECONDS) / pattern.period,
    from: {
      setup_seconds: workload.setup_seconds === undefined ? "assumed" : "given",
      use_seconds: givenUse !== undefined ? "given" : seen.use_seconds !== undefined ? "measured" : "assumed",
      // Each of the two follows from the other.
      idle_gap_seconds: from,
      uses_per_day: from,
    },
    prices: known.prices,
  };
  return { facts, pattern };
}

type Walked = Pick<Advice, "shape" | "decided_by" | "reason" | "steps">;
type Answer = AdviceStep["answer"];

const answerOf = (fact: boolean | undefined): Answer =>
  fact === undefined ? "unknown" : fact ? "yes" : "no";
const isWanted = ({ survives }: Workload): boolean | undefined =>
  Array.isArray(survives) ? survives.length > 0 : survives;

/** Asks the six questions. What follows one that decided is not asked any more. */
function walk(workload: Workload, facts: AdviceFacts, gaps: BreakEven): Walked {
  const steps: AdviceStep[] = [];
  const add = (question: Question, answer: Answer, points: Shape | null, reason: string): void => {
    steps.push({ question, asks: QUESTIONS[question], answer, points_to: points, decides: false, reason });
  };
  const decided = (by: Question, shape: Shape): Walked => {
    const deciding = steps.find(({ question }) => question === by);
    if (deciding === undefined) throw new Error(`the question ${by} decided and was not asked`);
    deciding.decides = true;
    return { shape, decided_by: by, reason: deciding.reason, steps };
  };

  const survives = isWanted(workload);
  if (survives === false) {
    add(
      "survives",
      "no",
      "ephemeral",
      "Nothing needs to survive: what is destroyed after each use leaves nothing to leak, to clean up or to pay for.",
    );
    return decided("survives", "ephemeral");
  }
  const kinds = Array.isArray(workload.survives) ? workload.survives.join(", ") : "what is in it";
  add(
    "survives",
    answerOf(survives),
    survives === true ? "stateful" : null,
    survives === true
      ? `It needs to survive (${kinds}): an ephemeral sandbox would forget it at the end of each use.`
      : "It is not said whether anything needs to survive.",
  );

  if (workload.untrusted === true) {
    add(
      "untrusted",
      "yes",
      "ephemeral",
      `Untrusted code runs once in a sandbox that is then destroyed: whatever it left behind is gone before the next use.${survives === true ? " What must survive is taken out as files, and checked." : ""}`,
    );
    return decided("untrusted", "ephemeral");
  }
  add(
    "untrusted",
    answerOf(workload.untrusted),
    null,
    workload.untrusted === false
      ? "The code is trusted: what it leaves behind may be kept."
      : "It is not said whether the code is trusted; if it is not, say so: that alone decides.",
  );

  const isSlow = facts.setup_seconds >= SLOW_SETUP_SECONDS;
  const isWarm = workload.interactive === true || (workload.interactive === undefined && isSlow);
  const wake = spanText(facts.wake_seconds.value);
  add(
    "warmth",
    isWarm ? "yes" : workload.interactive === false ? "no" : "unknown",
    isWarm ? "stateful" : null,
    isWarm
      ? workload.interactive === true
        ? `Somebody waits for each answer and goes on where they were: a wake takes ${wake}${isSlow ? `, setting up again ${spanText(facts.setup_seconds)}` : ", with processes and memory as they were left"}.`
        : `Setting up takes ${spanText(facts.setup_seconds)}, a wake ${wake}: each fresh start would be felt.`
      : workload.interactive === false
        ? "Nobody waits for it: a fresh start costs no one's time."
        : "It is not said whether somebody waits for it, and there is no slow set-up.",
  );

  if (workload.single_tenant === false) {
    add(
      "single_tenant",
      "no",
      "ephemeral",
      "What is kept would serve more than one tenant, and the one's data would lie where the other's code runs: one ephemeral sandbox for each use, or one stateful sandbox for each tenant.",
    );
    return decided("single_tenant", "ephemeral");
  }
  add(
    "single_tenant",
    answerOf(workload.single_tenant),
    null,
    workload.single_tenant === true
      ? "One tenant's data only: it may be kept, under that tenant's name."
      : "It is not said whether it is one tenant's alone; a stateful sandbox must name its tenant, and holds nobody else's data.",
  );

  if (survives !== true && !isWarm) return unsure();
  const rebuild = gaps.rebuild_beats_sleep_seconds;
  const known = facts.from.idle_gap_seconds !== "assumed";
  const gap = facts.idle_gap_seconds;
  if (survives !== true && workload.interactive !== true && known && rebuild !== null && gap > rebuild) {
    add(
      "idle",
      "yes",
      "ephemeral",
      `It would sleep for ${spanText(gap)} at a time; from ${spanText(rebuild)} on, setting up again costs less than keeping its image.`,
    );
    return decided("idle", "ephemeral");
  }
  const sleeps = gaps.sleep_beats_awake_seconds;
  const idles = sleeps !== null && gap > sleeps;
  add(
    "idle",
    known ? (idles ? "yes" : "no") : "unknown",
    known && idles ? "stateful" : null,
    known
      ? idles
        ? `About ${spanText(gap)} pass between two uses, and from ${spanText(sleeps)} on a sleep costs less than staying awake: it hibernates when idle.`
        : `About ${spanText(gap)} pass between two uses, too little to sleep in: it stays awake through a burst, and hibernates after it.`
      : "It is not said how long it idles; it hibernates when it does, so that idling costs storage alone.",
  );
  return decided(isWarm ? "warmth" : "survives", "stateful");

  function unsure(): Walked {
    add("idle", "unknown", null, "Whether it idles matters only for something that is kept.");
    add(
      "unsure",
      "yes",
      "ephemeral",
      "Nothing speaks for keeping it: ephemeral, which leaves nothing to leak and nothing to pay for, until something does.",
    );
    return decided("unsure", "ephemeral");
  }
}

/** How long after its last use a stateful sandbox goes to sleep. */
function idleTimeout(facts: AdviceFacts): number {
  const wanted = Math.ceil((facts.wake_seconds.value * IDLE_PER_WAKE) / 60) * 60;
  return Math.min(MAX_IDLE_SECONDS, Math.max(MIN_IDLE_SECONDS, wanted));
}

/** Fields of a create for that shape: those of an advice, or of a shape that the caller chose against it. */
export function settingsFor(shape: Shape, workload: Workload, facts: AdviceFacts): AdviceSettings {
  if (shape === "stateful") {
    return {
      persistent: true,
      ttl_seconds: null,
      on_expire: "destroy",
      idle_timeout_seconds: idleTimeout(facts),
      on_idle: "hibernate",
      // What must survive is not thrown away by a clock; what is only warm can be made again.
      retention_seconds:
        isWanted(workload) === true
          ? null
          : Math.min(LIMITS.maxRetentionSeconds, Math.max(DAYS_30, Math.ceil(4 * facts.idle_gap_seconds))),
    };
  }
  const isSession = workload.interactive === true && workload.untrusted !== true;
  return {
    persistent: false,
    ttl_seconds: isSession
      ? SESSION_TTL_SECONDS
      : Math.min(
          LIMITS.maxTtlSeconds,
          Math.max(
            LIMITS.defaultTtlSeconds,
            Math.ceil((facts.setup_seconds + 2 * facts.use_seconds) / 60) * 60,
          ),
        ),
    on_expire: "destroy",
    idle_timeout_seconds: isSession ? MAX_IDLE_SECONDS : null,
    on_idle: "destroy",
    retention_seconds: null,
  };
}

function lostBy(shape: Shape, settings: AdviceSettings, { survives }: Workload): Advice["lost"] {
  if (shape === "stateful")
    return [{ kind: "connections", when: "each sleep cuts those to the outside; those inside it survive" }];
  const wanted: readonly StateKind[] =
    Array.isArray(survives) && survives.length > 0 ? survives : STATE_KINDS;
  const when = `at the end of its use, or of its TTL of ${settings.ttl_seconds ?? LIMITS.defaultTtlSeconds} s`;
  return wanted.map((kind) => ({ kind, when }));
}

function notesOn(shape: Shape, workload: Workload, facts: AdviceFacts): string[] {
  const notes: string[] = [];
  const survives = isWanted(workload);
  if (workload.untrusted === true)
    notes.push('Give untrusted code no way out that it does not need: network "none", or a list of domains.');
  if (workload.untrusted === true && survives === true)
    notes.push("A persistent sandbox with untrusted code takes accept_risk: true, and a tenant of its own.");
  if (shape === "ephemeral" && facts.setup_seconds >= SLOW_SETUP_SECONDS)
    notes.push(
      `Set up once (${spanText(facts.setup_seconds)}), take a snapshot, and create from it with from_snapshot: a fresh sandbox each time, without the wait.`,
    );
  if (shape === "stateful" && workload.single_tenant !== true)
    notes.push("Name the tenant whose data is inside: a persistent sandbox without one is refused.");
  const unmeasured = (["create_seconds", "hibernate_seconds", "wake_seconds", "image_bytes"] as const).filter(
    (name) => !facts[name].measured,
  );
  if (unmeasured.length > 0)
    notes.push(`Not measured on this machine yet, documented figures instead: ${unmeasured.join(", ")}.`);
  if (facts.from.idle_gap_seconds === "assumed")
    notes.push("Nothing is known of how often it is used: costs are of one use an hour.");
  return notes;
}
