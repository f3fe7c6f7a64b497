import type { Clock } from "@torpor/base";
import { type EndReason, isEnding, type Machine } from "@torpor/protocol";
import type { Placement } from "../host/placement.ts";
import { toldHoldings } from "../ledger/binding-changes.ts";
import type { SandboxRecord } from "../store/sandbox-record.ts";
import type { SandboxStore } from "../store/sandbox-store.ts";
import { toldUse } from "../usage/metered.ts";
import { sandboxNotFound } from "./sandbox-errors.ts";

/**
 * Ends sandboxes, and records ends that their host tells of. The intent is committed before the host is asked, so a crash in
 * between leaves a record in `destroying`, which reconciliation finishes.
 */
export class SandboxEnds {
  readonly #store: SandboxStore;
  readonly #placement: Placement;
  readonly #clock: Clock;
  readonly #destroying = new Map<string, Promise<SandboxRecord>>();

  constructor({ store, placement, clock }: { store: SandboxStore; placement: Placement; clock: Clock }) {
    this.#store = store;
    this.#placement = placement;
    this.#clock = clock;
  }

  /**
   * Ends a sandbox from any state and resolves with its final record. Callers that come while it ends share one end.
   *
   * @param actor who asked for it: id of a key, or `system:` and what of ours
   * @throws CodedError host_unavailable when the host cannot be told: the record stays `destroying` and is finished
   *   when the host is back.
   */
  destroy(record: SandboxRecord, reason: EndReason, actor: string): Promise<SandboxRecord> {
    if (record.state === "destroyed") return Promise.resolve(record);
    let ending = this.#destroying.get(record.id);
    if (ending === undefined) {
      ending = this.#destroy(record, reason, actor).finally(() => this.#destroying.delete(record.id));
      this.#destroying.set(record.id, ending);
    }
    return ending;
  }

  async #destroy(record: SandboxRecord, reason: EndReason, actor: string): Promise<SandboxRecord> {
    let current = record;
    while (current.state !== "destroying") {
      if (current.state === "destroyed") return current;
      const moved = await this.#store.advance(current, "destroying", { reason, actor, endedBy: actor });
      current = moved ?? (await this.#reload(current));
    }
    return await this.finish(current);
  }

  /** Ends the machine of a record in `destroying`. @throws CodedError host_unavailable */
  async finish(record: SandboxRecord): Promise<SandboxRecord> {
    const host = await this.#placement.of(record.host);
    const machine = await host.client.deleteMachine(record, record.reason ?? "user");
    return await this.#recordEnd(record, machine);
  }

  async #recordEnd(record: SandboxRecord, machine: Machine | undefined): Promise<SandboxRecord> {
    const ownReason = record.reason === "create_failed" || record.reason === "abandoned";
    const reason = ownReason ? record.reason : (machine?.reason ?? record.reason ?? "user");
    const endedAt = machine?.ended_at == null ? this.#clock.now() : Date.parse(machine.ended_at);
    let current = record;
    while (current.state !== "destroyed") {
      const ended = await this.#store.advance(current, "destroyed", {
        endedAt,
        ...(machine === undefined ? {} : { told: toldHoldings(machine), use: toldUse(machine) }),
        ...(reason === null ? {} : { reason }),
      });
      current = ended ?? (await this.#reload(current));
    }
    return current;
  }

  /** Records what the host says: the machine has ended or failed. From any state; a record that has ended already stays as it is. */
  async noteEnded(record: SandboxRecord, machine: Machine): Promise<SandboxRecord> {
    if (machine.state === "failed") return await this.#noteFailed(record, machine);
    return await this.noteGone(record, machine.reason ?? "runtime_crashed", machine);
  }

  /** It can do no more work; the host keeps what is left of it until it is destroyed. */
  async #noteFailed(record: SandboxRecord, machine: Machine): Promise<SandboxRecord> {
    const endedAt = machine.ended_at === null ? this.#clock.now() : Date.parse(machine.ended_at);
    const reason = machine.reason ?? "runtime_crashed";
    let current = record;
    while (!isEnding(current.state)) {
      // One that is thought asleep has been woken and has failed since.
      const moved =
        current.state === "hibernated"
          ? await this.#store.advance(current, "waking", {})
          : await this.#store.advance(current, "failed", { reason, endedAt, use: toldUse(machine) });
      current = moved ?? (await this.#reload(current));
    }
    return current;
  }

  /** Records the end of a sandbox whose machine is no more, with or without the host's last word on it. */
  async noteGone(record: SandboxRecord, reason: EndReason, machine?: Machine): Promise<SandboxRecord> {
    let current = record;
    while (current.state !== "destroyed") {
      if (current.state === "destroying") return await this.#recordEnd(current, machine);
      const use = machine === undefined ? "lost" : toldUse(machine);
      const moved = await this.#store.advance(current, "destroying", { reason, use });
      current = moved ?? (await this.#reload(current));
    }
    return current;
  }

  async #reload(record: SandboxRecord): Promise<SandboxRecord> {
    const now = await this.#store.reload(record);
    if (now === undefined) throw sandboxNotFound(record.id);
    return now;
  }
}
