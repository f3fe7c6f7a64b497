import { setTimeout as delay } from "node:timers/promises";
import { CodedError, type Machine } from "@torpor/protocol";
import type { HostClient } from "../host/host-client.ts";
import type { OwnedMachine } from "../host/owned-machine.ts";

/** How long one question to the host waits for the machine to stand still, milliseconds. */
const SETTLE_WITHIN_MS = 20_000;
/** Between two such questions, and before what was cut for no known reason is tried again, milliseconds. */
const ASK_EVERY_MS = 50;
/** Interruptions in a row, without a word from the guest in between, after which it is given up. */
const MAX_IN_A_ROW = 5;

/** States that a machine leaves by itself, or by its owner's next call: whoever is cut off in one waits. */
const PASSING: readonly Machine["state"][] = ["creating", "snapshotting", "hibernating", "waking", "paused"];

/**
 * What interrupts a connection into a sandbox and passes: a snapshot and a fork cut every one, and a paused sandbox answers
 * nothing. Waiting for it wakes nothing.
 */
export class Interruptions {
  readonly #host: HostClient;
  readonly #machine: OwnedMachine;
  readonly #signal: AbortSignal | undefined;
  #inARow = 0;

  constructor(host: HostClient, machine: OwnedMachine, signal?: AbortSignal) {
    this.#host = host;
    this.#machine = machine;
    this.#signal = signal;
  }

  get #hasLeft(): boolean {
    return this.#signal?.aborted === true;
  }

  /** The guest has said something: what interrupts it next is another interruption. */
  passed(): void {
    this.#inARow = 0;
  }

  /**
   * Waits until what cut a connection, with `error`, has passed.
   *
   * @returns false when it will not: the sandbox sleeps or has ended, its host is gone, the caller has left, or `error`
   *   is a refusal
   */
  async pass(error: unknown): Promise<boolean> {
    this.#inARow += 1;
    if (this.#hasLeft || !isCut(error) || this.#inARow > MAX_IN_A_ROW) return false;
    for (;;) {
      let machine: Machine | undefined;
      try {
        machine = await this.#host.settledMachine(this.#machine, SETTLE_WITHIN_MS, this.#signal);
      } catch {
        return false;
      }
      if (machine === undefined) return false;
      if (machine.state === "running") {
        if (this.#inARow > 1) await delay(ASK_EVERY_MS);
        return !this.#hasLeft;
      }
      if (!PASSING.includes(machine.state)) return false;
      await delay(ASK_EVERY_MS);
    }
  }
}

const CUT: readonly string[] = ["guest_unavailable", "host_unavailable", "wrong_state"];

/** Whether `error` is that of a connection that broke or met a locked guest, and not an answer. */
function isCut(error: unknown): boolean {
  return !(error instanceof CodedError) || CUT.includes(error.code);
}
