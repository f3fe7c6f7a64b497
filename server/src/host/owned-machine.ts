import type { HostScope } from "../auth/tenant-scope.ts";
import type { AddressHolder } from "../store/sandbox-store.ts";
import type { SandboxRecord } from "../store/sandbox-record.ts";

/** A machine that its host has told of, whether or not a record knows it. */
export class ReportedMachine {
  readonly #id: string;

  private constructor(id: string) {
    this.#id = id;
  }

  /** `id` is one that the host of this scope has told of. */
  static of(_scope: HostScope, id: string): ReportedMachine {
    return new ReportedMachine(id);
  }

  get id(): string {
    return this.#id;
  }
}

/** A machine that may be spoken of to its host: that of a record which the store gave out, of the holder of an address, or one the host has told of. */
export type OwnedMachine = SandboxRecord | AddressHolder | ReportedMachine;
