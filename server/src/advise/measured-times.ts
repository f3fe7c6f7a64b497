import type { Clock } from "@torpor/base";
import type { Measured, MeasuredTimes } from "@torpor/protocol";
import type { ServerScope } from "../auth/tenant-scope.ts";
import type { SandboxRecord } from "../store/sandbox-record.ts";
import type { TimedMove, TimingStore } from "../store/timing-store.ts";

/**
 * What holds until something was seen: medians on a machine with two cores, other work beside and no virtualisation, of the
 * template `code-interpreter` with a kernel that waits (docs/CHOOSING.md).
 */
const DOCUMENTED = { create: 0.05, hibernate: 0.5, wake: 0.4, imageBytes: 80 * 1024 * 1024 };

/** A median of more tells no more, and one of the newest follows what changes. */
const SAMPLES = 50;
/** What many ask at once is read once. */
const FRESH_MS = 10_000;

/** What is known of how one sandbox is used. */
export interface SeenUse {
  idle_gap_seconds?: number;
}

/** How long creates, sleeps and wakes take on this machine, and how large their images are. */
export class TimesHere {
  readonly #store: TimingStore;
  readonly #scope: ServerScope;
  readonly #clock: Clock;
  #newest: { at: number; moves: Promise<TimedMove[]> } | undefined;

  constructor(store: TimingStore, scope: ServerScope, clock: Clock) {
    this.#store = store;
    this.#scope = scope;
    this.#clock = clock;
  }

  /** Of one sandbox: its own moves before those of its template. */
  async ofSandbox(record: SandboxRecord): Promise<{ times: MeasuredTimes; seen: SeenUse }> {
    const own = await this.#store.of(record);
    const times = timesFrom([["sandbox", own], ...(await this.#layers(record.template))]);
    const image = record.image?.size_bytes;
    if (image !== undefined && times.image_bytes.source !== "sandbox")
      times.image_bytes = { value: image, measured: true, samples: 1, source: "sandbox" };
    return { times, seen: seenUse(own, record.idleTimeoutSeconds) };
  }

  /** Of a template; where nothing of it was seen, of all templates; else as documented. */
  async ofTemplate(template: string): Promise<MeasuredTimes> {
    return timesFrom(await this.#layers(template));
  }

  async #layers(template: string): Promise<Layer[]> {
    const moves = await this.#all();
    return [
      ["template", moves.filter((move) => move.template === template)],
      ["machine", moves],
    ];
  }

  async #all(): Promise<TimedMove[]> {
    const now = this.#clock.monotonic();
    if (this.#newest === undefined || now - this.#newest.at > FRESH_MS) {
      const moves = this.#store.newest(this.#scope);
      this.#newest = { at: now, moves };
      moves.catch(() => {
        this.#newest = undefined;
      });
    }
    return await this.#newest.moves;
  }
}

type Layer = [Exclude<Measured["source"], "documented">, readonly TimedMove[]];

function timesFrom(layers: readonly Layer[]): MeasuredTimes {
  const took = (what: TimedMove["what"], documented: number): Measured =>
    firstMeasured(layers, documented, (move) =>
      move.what === what && move.tookMs !== null ? move.tookMs / 1_000 : null,
    );
  return {
    create_seconds: took("create", DOCUMENTED.create),
    hibernate_seconds: took("hibernate", DOCUMENTED.hibernate),
    wake_seconds: took("wake", DOCUMENTED.wake),
    image_bytes: firstMeasured(layers, DOCUMENTED.imageBytes, ({ imageBytes }) => imageBytes),
  };
}

/** The median of the newest samples of the first layer that has any. */
function firstMeasured(
  layers: readonly Layer[],
  documented: number,
  sample: (move: TimedMove) => number | null,
): Measured {
  for (const [source, moves] of layers) {
    const samples = moves
      .map(sample)
      .filter((one) => one !== null)
      .slice(0, SAMPLES);
    if (samples.length > 0)
      return { value: median(samples), measured: true, samples: samples.length, source };
  }
  return { value: documented, measured: false, samples: 0, source: "documented" };
}

function median(values: readonly number[]): number {
  return values.toSorted((one, other) => one - other)[Math.floor((values.length - 1) / 2)] ?? 0;
}

/** Gaps as its sleeps show them: what it slept, and what it was awake for before it fell asleep. */
function seenUse(moves: readonly TimedMove[], idleTimeoutSeconds: number | null): SeenUse {
  const inOrder = moves.toReversed();
  const gaps = inOrder.flatMap((move, index) => {
    const before = inOrder[index - 1];
    if (move.what !== "wake" || before?.what !== "hibernate") return [];
    return [(move.at - before.at) / 1_000 + (idleTimeoutSeconds ?? 0)];
  });
  return gaps.length === 0 ? {} : { idle_gap_seconds: Math.round(median(gaps)) };
}
