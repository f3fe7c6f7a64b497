import type { Clock, Log } from "@torpor/base";
import { CodedError } from "@torpor/protocol";
import type { ServerScope, TenantScope } from "../../auth/tenant-scope.ts";
import type { KeyWatch } from "../../auth/key-watch.ts";
import { CreateTurns } from "../../sandbox/create-turns.ts";
import type { Sandboxes } from "../../sandbox/sandboxes.ts";
import type { Snapshots } from "../../snapshot/snapshots.ts";
import type { BuildLogStore } from "../../store/build-log-store.ts";
import type { KeyRecord } from "../../store/key-store.ts";
import type { SandboxRecord } from "../../store/sandbox-record.ts";
import type { Placement } from "../../host/placement.ts";
import type { SnapshotStore } from "../../store/snapshot-store.ts";
import type { BuildRecord, BuiltTemplate, TemplateStore } from "../../store/template-store.ts";
import { BuildFailed, failureText } from "./build-failed.ts";
import { chooseTemplate } from "./choose-template.ts";
import { BuildLog } from "./build-log.ts";
import type { BuildSpec } from "./build-spec.ts";
import { prepareImage } from "./prepare-image.ts";
import { BUILD_TTL_SECONDS, runBuild, StepFailed } from "./run-build.ts";
import type { TemplateFiles } from "./template-files.ts";
import { requireFewUnfinished } from "./unfinished-builds.ts";

export interface BuildsOptions {
  store: TemplateStore;
  logStore: BuildLogStore;
  snapshotStore: Pick<SnapshotStore, "ofBuild" | "list">;
  placement: Pick<Placement, "choose">;
  sandboxes: Sandboxes;
  snapshots: Snapshots;
  files: TemplateFiles;
  keyWatch: KeyWatch;
  /** Whether no other server works on the same store. */
  soleServer: boolean;
  clock: Clock;
  log: Log;
}

interface Running {
  templateId: string;
  abort: AbortController;
  done: Promise<void>;
}

/** Builds under way in one server; more wait for their turn. Each is a sandbox that works. */
const BUILDS_AT_ONCE = 4;
const MAX_TURN_WAIT_MS = 30 * 60_000;
/** The longest a build may take, milliseconds: E2B's own bound. */
const MAX_BUILD_MS = 60 * 60_000;
const HEARTBEAT_EVERY_MS = 20_000;
/** A build that has not been heard of for this long has lost its server, milliseconds. */
const LOST_AFTER_MS = 90_000;
/** A build that was asked for and never started is forgotten after this long, milliseconds. */
const UNSTARTED_MS = 24 * 60 * 60_000;
/** What no tag stands for any more can still be asked about for this long, milliseconds. */
const UNTAGGED_MS = 7 * 24 * 60 * 60_000;
const SWEEP_ROWS = 200;

/** Runs builds in the background, and cleans up behind them. */
export class Builds {
  readonly #options: BuildsOptions;
  readonly #turns: CreateTurns;
  readonly #running = new Map<string, Running>();

  constructor(options: BuildsOptions) {
    this.#options = options;
    this.#turns = new CreateTurns({
      atOnce: () => BUILDS_AT_ONCE,
      maxWaitMs: MAX_TURN_WAIT_MS,
      clock: options.clock,
    });
  }

  /** Starts a build that waits; it goes on when this has resolved. @throws CodedError conflict when it was started before, rate_limited */
  async start(scope: TenantScope, key: KeyRecord, build: BuildRecord, spec: BuildSpec): Promise<void> {
    const { store, keyWatch, clock } = this.#options;
    await requireFewUnfinished(store, build, ["building"]);
    const begun = await store.begin(build, clock.now());
    if (begun === undefined)
      throw new CodedError(
        "conflict",
        `build ${build.id} was started before; request another for its template`,
      );
    const abort = new AbortController();
    const release = keyWatch.hold(key, (refusal) => abort.abort(new BuildFailed(refusal.message)));
    const done = this.#build(scope, begun, spec, abort).finally(() => {
      release();
      this.#running.delete(build.id);
    });
    this.#running.set(build.id, { templateId: build.templateId, abort, done });
  }

  async #build(
    scope: TenantScope,
    build: BuildRecord,
    spec: BuildSpec,
    abort: AbortController,
  ): Promise<void> {
    const { store, logStore, snapshots, files, placement, clock, log } = this.#options;
    const startedAt = clock.monotonic();
    const buildLog = new BuildLog({ store: logStore, build, clock, log });
    const tooLong = clock.after(MAX_BUILD_MS, () =>
      abort.abort(new BuildFailed(`the build took longer than ${MAX_BUILD_MS / 60_000} minutes`)),
    );
    let sandbox: SandboxRecord | undefined;
    const stopHeartbeat = this.#heartbeat(scope, build, abort, () => sandbox);
    let outcome = "ready";
    try {
      const run = { scope, build, spec, buildLog, signal: abort.signal };
      const { snapshot, defaults } = await this.#inTurn(build, abort.signal, () =>
        runBuild(
          { ...run, onSandbox: (record) => (sandbox = record) },
          {
            ...this.#options,
            resolve: (by, reference) => chooseTemplate(this.#options, by, reference),
            files: (hash) => files.open(build, hash),
            prepareImage: async (by, request, follow) => {
              const { client } = await placement.choose({ cpu: 0, memoryMb: 0, diskMb: 0 });
              return await prepareImage(client, by, request, follow);
            },
          },
        ),
      );
      buildLog.add(null, "info", "build finished");
      await buildLog.flush();
      if (await store.finish(build, { snapshotId: snapshot.id, defaults }, clock.now()))
        await this.dropUntagged(build);
      else await snapshots.remove(snapshot, "system:template-build");
    } catch (error) {
      outcome = "error";
      const { message, step } =
        error instanceof StepFailed ? error : { message: failureText(error), step: "base" };
      buildLog.add(step, "error", message);
      await buildLog.flush();
      await store
        .fail(build, { message, step }, clock.now())
        .catch((failed: unknown) =>
          log.error({ op: "template.build", outcome: "not recorded", buildId: build.id, err: failed }),
        );
      log.info({ op: "template.build", outcome: "failed", buildId: build.id, step, err: error });
    } finally {
      tooLong();
      stopHeartbeat();
    }
    const durationMs = Math.round(clock.monotonic() - startedAt);
    log.info({ op: "template.build", outcome, buildId: build.id, tenant: build.tenant, durationMs });
  }

  /** Runs `work` when it is this tenant's turn. One that is stopped while it waits does not wait on. */
  async #inTurn<T>(
    { account, tenant }: BuildRecord,
    signal: AbortSignal,
    work: () => Promise<T>,
  ): Promise<T> {
    let begun = false;
    const stoppedEarly = new Promise<never>((_, reject) => {
      signal.addEventListener("abort", () => begun || reject(signal.reason as BuildFailed), { once: true });
    });
    const turn = this.#turns.run(`${account} ${tenant}`, () => {
      signal.throwIfAborted();
      begun = true;
      return work();
    });
    return await Promise.race([turn, stoppedEarly]);
  }

  /** Keeps the record and the sandbox of a build alive, and stops a build that was removed. */
  #heartbeat(
    scope: TenantScope,
    build: BuildRecord,
    abort: AbortController,
    sandbox: () => SandboxRecord | undefined,
  ): () => void {
    const { store, sandboxes, clock, log } = this.#options;
    let cancel = (): void => {};
    let stopped = false;
    const beat = async (): Promise<void> => {
      try {
        if (!(await store.heartbeat(build, clock.now())))
          abort.abort(new BuildFailed("the build was given up"));
        const record = sandbox();
        if (record !== undefined)
          await sandboxes.setLifecycle(scope, record.id, { ttl_seconds: BUILD_TTL_SECONDS });
      } catch (error) {
        log.warn({ op: "template.heartbeat", outcome: "failed", buildId: build.id, err: error });
      }
      if (!stopped) cancel = clock.after(HEARTBEAT_EVERY_MS, () => void beat());
    };
    cancel = clock.after(HEARTBEAT_EVERY_MS, () => void beat());
    return () => {
      stopped = true;
      cancel();
    };
  }

  /** Stops what of a template is being built here, and resolves when that is over. */
  async cancel(template: BuiltTemplate): Promise<void> {
    const mine = [...this.#running.values()].filter(({ templateId }) => templateId === template.id);
    for (const { abort } of mine) abort.abort(new BuildFailed("the template was deleted"));
    await Promise.all(mine.map(({ done }) => done));
  }

  /** Removes a build with its image, whatever its state. */
  async remove(build: BuildRecord, actor = "system:sweep"): Promise<void> {
    await this.#dropSnapshot(build, actor);
    await this.#options.store.removeBuild(build);
  }

  /** Gives up builds whose server is no more, and forgets what nobody can reach any longer. @returns how many. */
  async sweep(scope: ServerScope): Promise<number> {
    const { store, files, soleServer, clock } = this.#options;
    const now = clock.now();
    const lost = await store.abandoned(scope, soleServer ? now : now - LOST_AFTER_MS, now - UNSTARTED_MS);
    let count = await files.sweep();
    for (const build of lost) {
      if (this.#running.has(build.id)) continue;
      count += 1;
      if (build.status === "waiting") await this.remove(build);
      else
        await store.fail(
          build,
          { message: "the server that built it was stopped or lost; build it again", step: "base" },
          now,
        );
    }
    for (const build of await store.untagged(scope, now - UNTAGGED_MS, SWEEP_ROWS)) {
      count += 1;
      await this.remove(build);
    }
    return count;
  }

  /** Stops all builds; each is recorded as failed. */
  async close(): Promise<void> {
    const running = [...this.#running.values()];
    for (const { abort } of running)
      abort.abort(new BuildFailed("the server was stopped while it built; build it again"));
    await Promise.all(running.map(({ done }) => done));
  }

  /** Removes the images of builds of a template that no tag stands for any more: nothing can be made from them. */
  async dropUntagged(of: BuildRecord | BuiltTemplate): Promise<void> {
    for (const build of await this.#options.store.unreachable(of))
      await this.#dropSnapshot(build, "system:template-build");
  }

  async #dropSnapshot(build: BuildRecord, actor: string): Promise<void> {
    const { snapshotStore, snapshots, store, log } = this.#options;
    const snapshot = await snapshotStore.ofBuild(build);
    if (snapshot === undefined) return;
    await store.forgetSnapshot(build);
    await snapshots
      .remove(snapshot, actor)
      .catch((error: unknown) =>
        log.warn({ op: "template.drop", outcome: "left to the sweep", snapshotId: snapshot.id, err: error }),
      );
  }
}
