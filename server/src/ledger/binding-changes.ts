import type { Incarnation, LedgerResource, Machine, SandboxState } from "@torpor/protocol";
import type { LedgerDraft } from "../store/ledger-store.ts";

/** What a sandbox holds, as its record says. */
export interface Holdings {
  /** Number of the newest machine on record; 0 before the first. */
  readonly incarnation: number;
  /** The machine it has and its address; null while it has none. */
  readonly machineId: string | null;
  readonly address: string | null;
  /** The hibernation image it has; null for none. */
  readonly imageId: string | null;
}

/** What its host says of that. */
export interface ToldHoldings {
  incarnations: readonly Incarnation[];
  /** Undefined while that is about to change. */
  imageId: string | null | undefined;
  /** Its host knows nothing of it any more, and so has none of its machine. Default false. */
  isUnknown?: boolean;
}

/** Whose they are. */
type Subject = Pick<LedgerDraft, "account" | "tenant" | "sandbox_id" | "host">;

/** Why they change. */
export interface BindingCause {
  /** Who did the newest of it; what came before that was the host's doing. */
  actor: string;
  state: SandboxState;
  generation: number;
  reason: string | null;
}

const HOST_ACTOR = "system:host";

/** The states in which a sandbox's image is what the host shows. */
const SETTLED: readonly Machine["state"][] = ["running", "paused", "hibernated", "ended", "failed"];

export function toldHoldings({ incarnations, image, state }: Machine): ToldHoldings {
  return { incarnations, imageId: SETTLED.includes(state) ? (image?.id ?? null) : undefined };
}

/** Whether the host tells of something that is not on record. */
export function tellsNews(held: Holdings, told: ToldHoldings): boolean {
  const newest = told.incarnations.at(-1);
  if (newest !== undefined) {
    if (newest.number > held.incarnation) return true;
    const isReleased = newest.number === held.incarnation && newest.released_at !== null;
    if (isReleased && held.machineId !== null) return true;
  }
  return told.imageId !== undefined && told.imageId !== held.imageId;
}

/**
 * What a record must say after its host has told what the sandbox was given and gave back since, and the entries that say
 * it: none is skipped, however much the server has missed.
 */
export function bindingChanges(
  held: Holdings,
  told: ToldHoldings | undefined,
  subject: Subject,
  cause: BindingCause,
): { holdings: Holdings; drafts: LedgerDraft[] } {
  const log = new BindingLog(held, subject, cause);
  if (told !== undefined) {
    for (const incarnation of told.incarnations) log.follow(incarnation);
    if (told.imageId !== undefined && cause.state !== "destroyed") log.setImage(told.imageId);
    if (told.isUnknown === true) log.releaseMachine("host_lost");
  }
  if (cause.state === "destroyed") log.end();
  return { holdings: log.holdings, drafts: log.attributed() };
}

class BindingLog {
  holdings: Holdings;
  readonly #subject: Subject;
  readonly #cause: BindingCause;
  readonly #drafts: LedgerDraft[] = [];
  /** By the number of a machine: when its host took it back. */
  readonly #turns = new Map<number, number>();

  constructor(held: Holdings, subject: Subject, cause: BindingCause) {
    this.holdings = held;
    this.#subject = subject;
    this.#cause = cause;
  }

  follow(incarnation: Incarnation): void {
    const { number, id, address, source, from, generation } = incarnation;
    if (incarnation.released_turn !== null) this.#turns.set(number, incarnation.released_turn);
    if (number < this.holdings.incarnation) return;
    if (number > this.holdings.incarnation) {
      this.releaseMachine("hibernated", this.#turns.get(this.holdings.incarnation)); // only sleep lies between two
      if (source === "image" && from !== null) this.setImage(from); // made and consumed since
      const machine: LedgerResource = { kind: "machine", id, number, source };
      if (from !== null) machine.from = from;
      const why = source === "image" ? "wake" : source === "snapshot" ? "restore" : "create";
      this.#add("bind", generation, why, [
        machine,
        { kind: "address", id: address, turn: incarnation.bound_turn },
      ]);
      this.holdings = { ...this.holdings, incarnation: number, machineId: id, address };
    }
    // At its end all it has is released at once; the machines before the last one went as it slept.
    if (incarnation.released_at !== null && this.#cause.state !== "destroyed")
      this.releaseMachine(this.#reason("hibernated"), incarnation.released_turn, generation);
  }

  setImage(id: string | null): void {
    const { imageId } = this.holdings;
    if (id === imageId) return;
    if (imageId !== null)
      this.#add("release", this.#cause.generation, "consumed", [{ kind: "image", id: imageId }]);
    if (id !== null) this.#add("bind", this.#cause.generation, "hibernated", [{ kind: "image", id }]);
    this.holdings = { ...this.holdings, imageId: id };
  }

  /** The sandbox is no more, and with it all it held. */
  end(): void {
    const { machineId, address, imageId } = this.holdings;
    const resources: LedgerResource[] = [];
    if (machineId !== null) resources.push({ kind: "machine", id: machineId });
    if (address !== null) resources.push(givenBack(address, this.#turns.get(this.holdings.incarnation)));
    if (imageId !== null) resources.push({ kind: "image", id: imageId });
    resources.push({ kind: "sandbox", id: this.#subject.sandbox_id ?? "" });
    this.#add("release", this.#cause.generation, this.#reason("destroyed"), resources);
    this.holdings = { ...this.holdings, machineId: null, address: null, imageId: null };
  }

  /** The entries, those of the newest step in the name of who asked for it. */
  attributed(): LedgerDraft[] {
    // Images come and go with a machine's entry before theirs.
    const step = this.#drafts.findLastIndex(({ resources }) => resources[0]?.kind !== "image");
    for (const draft of this.#drafts.slice(Math.max(step, 0))) draft.actor = this.#cause.actor;
    return this.#drafts;
  }

  releaseMachine(reason: string, turn?: number | null, generation = this.#cause.generation): void {
    const { machineId, address } = this.holdings;
    if (machineId === null) return;
    const resources: LedgerResource[] = [{ kind: "machine", id: machineId }];
    if (address !== null) resources.push(givenBack(address, turn));
    this.#add("release", generation, reason, resources);
    this.holdings = { ...this.holdings, machineId: null, address: null };
  }

  /** That of the sandbox's end, once it ends. */
  #reason(whileItLives: string): string {
    return this.#cause.reason ?? whileItLives;
  }

  #add(action: "bind" | "release", generation: number, reason: string, resources: LedgerResource[]): void {
    this.#drafts.push({ ...this.#subject, action, generation, actor: HOST_ACTOR, reason, resources });
  }
}

function givenBack(address: string, turn: number | null | undefined): LedgerResource {
  return { kind: "address", id: address, ...(turn == null ? {} : { turn }) };
}
