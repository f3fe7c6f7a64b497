import type { Clock, Log } from "@torpor/base";
import { CodedError } from "@torpor/protocol";
import type { Placement } from "../host/placement.ts";
import type { SandboxRecord } from "../store/sandbox-record.ts";
import type { SandboxStore } from "../store/sandbox-store.ts";

export interface UnaskedWakesOptions {
  store: SandboxStore;
  placement: Placement;
  clock: Clock;
  log: Log;
}

/**
 * Holds to their owners' limits and budgets the wakes that a host does by itself, for work that was on its way to a sandbox
 * when it fell asleep. Where there is no room for one more awake, its record sleeps on and the host is told to put it back.
 */
export class UnaskedWakes {
  readonly #options: UnaskedWakesOptions;
  readonly #sleeping = new Set<string>();

  constructor(options: UnaskedWakesOptions) {
    this.#options = options;
  }

  /** The hibernated record, counted as awake where there are limits; undefined when it is to sleep on. */
  async admit(record: SandboxRecord): Promise<SandboxRecord | undefined> {
    const { store, clock } = this.#options;
    try {
      return await store.claimWake(record, clock.now());
    } catch (error) {
      if (!(error instanceof CodedError) || !["quota_exceeded", "budget_exhausted"].includes(error.code))
        throw error;
      if (!this.#sleeping.has(record.id)) void this.#putBack(record, error);
      return undefined;
    }
  }

  /** One that cannot sleep now is tried again when its machine is next looked at, within a minute. */
  async #putBack(record: SandboxRecord, refusal: CodedError): Promise<void> {
    const { store, placement, log } = this.#options;
    const line = { op: "sandbox.unasked_wake", sandboxId: record.id, tenant: record.tenant };
    this.#sleeping.add(record.id);
    try {
      const host = await placement.of(record.host);
      // One that was woken within its limits by now is to stay awake.
      if ((await store.reload(record))?.state !== "hibernated") return;
      await host.client.moveMachine(record, "hibernate");
      log.info({ ...line, outcome: "put back to sleep", why: refusal.message });
    } catch (error) {
      log.warn({ ...line, outcome: "to be put back to sleep later", why: refusal.message, err: error });
    } finally {
      this.#sleeping.delete(record.id);
    }
  }
}
