import type { Clock } from "@torpor/base";
import {
  CodedError,
  isEnding,
  newSandboxId,
  type OpenSessionRequest,
  type TakenAdvice,
} from "@torpor/protocol";
import type { TenantScope } from "../auth/tenant-scope.ts";
import type { SandboxRecord } from "../store/sandbox-record.ts";
import type { SandboxStore } from "../store/sandbox-store.ts";
import type { SessionName, SessionRow, SessionStore } from "../store/session-store.ts";
import { type CreatePlan, refused } from "./create-plan.ts";
import type { Sandboxes } from "./sandboxes.ts";

export interface SessionsOptions {
  store: SessionStore;
  sandboxStore: SandboxStore;
  sandboxes: Sandboxes;
  clock: Clock;
  /** Whether no other server shares the store: then what was chosen before this process began is nobody's work any more. */
  soleServer: boolean;
}

export interface OpenedSession {
  sandbox: SandboxRecord;
  created: boolean;
  /** What was advised for it; null without `lifecycle: "auto"`. */
  advice: TakenAdvice | null;
}

/** A name that was taken this long ago for a sandbox nobody has recorded is left by a server that died: turns take less. */
const CLAIM_GRACE_MS = 75_000;
/** How long a caller waits for a sandbox that another server is making. */
const MAX_WAIT_MS = 120_000;
const ASK_EVERY_MS = 100;

/** Get-or-create by a tenant's own key: one living sandbox for each, however many ask at once. */
export class Sessions {
  readonly #options: SessionsOptions;
  readonly #startedAt: number;
  readonly #opening = new Map<string, Promise<OpenedSession>>();

  constructor(options: SessionsOptions) {
    this.#options = options;
    this.#startedAt = options.clock.now();
  }

  /**
   * The sandbox of that key, awake; made when there is none that lives. The other fields matter only then.
   *
   * @throws CodedError invalid_request naming `tenant` when none is; what a create or a wake throws
   */
  async open(scope: TenantScope, { key, ...request }: OpenSessionRequest): Promise<OpenedSession> {
    // What is kept under a key is meant to be found again, unless its owner or the advice says otherwise.
    const persistent = request.persistent ?? (request.lifecycle === "auto" ? undefined : true);
    const plan = await this.#options.sandboxes.plan(scope, { ...request, persistent });
    const isNamed =
      request.tenant !== undefined || request.metadata["tenant_id"] !== undefined || scope.tenant !== null;
    if (!isNamed)
      throw refused(
        "tenant",
        "is required: a session belongs to one tenant, and its key is that tenant's own",
      );
    const name: SessionName = { account: scope.account, tenant: plan.tenant, key };
    const slot = JSON.stringify([name.account, name.tenant, name.key]);
    const opening = this.#opening.get(slot);
    if (opening !== undefined) return { ...(await opening), created: false };
    const mine = this.#open(scope, name, plan).finally(() => this.#opening.delete(slot));
    this.#opening.set(slot, mine);
    return await mine;
  }

  async #open(scope: TenantScope, name: SessionName, plan: CreatePlan): Promise<OpenedSession> {
    const { store, clock } = this.#options;
    const until = clock.monotonic() + MAX_WAIT_MS;
    const newId = newSandboxId();
    for (;;) {
      const row = await store.findOrClaim(name, newId, clock.now());
      if (row.sandbox_id === newId) return await this.#create(scope, name, plan, newId);
      const found = await this.#wake(scope, row);
      if (found !== "ended" && found !== "unmade") return { sandbox: found, created: false, advice: null };
      if (found === "ended") {
        await store.replace(row, newId, clock.now());
        continue; // the row says who won
      }
      if (clock.monotonic() > until) {
        throw new CodedError(
          "host_unavailable",
          `session ${JSON.stringify(name.key)} is still being made by another server after ${MAX_WAIT_MS / 1_000} s; try again`,
        );
      }
      await new Promise((resolve) => setTimeout(resolve, ASK_EVERY_MS));
    }
  }

  async #create(scope: TenantScope, name: SessionName, plan: CreatePlan, id: string): Promise<OpenedSession> {
    try {
      await this.#options.sandboxes.foretell(scope, plan);
      const sandbox = await this.#options.sandboxes.create(scope, plan, { id });
      return { sandbox, created: true, advice: plan.advice ?? null };
    } catch (error) {
      await this.#options.store.release(name, id);
      throw error;
    }
  }

  /** The session's sandbox, awake; `ended` when it is no more, `unmade` while another server makes it. */
  async #wake(scope: TenantScope, row: SessionRow): Promise<SandboxRecord | "ended" | "unmade"> {
    const { sandboxStore, sandboxes, clock, soleServer } = this.#options;
    const record = await sandboxStore.find(scope, row.sandbox_id);
    if (record === undefined) {
      const isLeftBehind = soleServer && row.chosen_at < this.#startedAt;
      const mayBeUnderWay = !isLeftBehind && clock.now() - row.chosen_at < CLAIM_GRACE_MS;
      return mayBeUnderWay ? "unmade" : "ended";
    }
    if (isEnding(record.state)) return "ended";
    if (record.state === "creating") return "unmade";
    try {
      // Asked of the host even when the record says that it runs: it may have fallen asleep a moment ago.
      return await sandboxes.move(scope, record.id, "wake");
    } catch (error) {
      if (
        error instanceof CodedError &&
        (error.code === "sandbox_ended" || error.code === "sandbox_not_found")
      )
        return "ended";
      throw error;
    }
  }
}
