import { type LedgerEntry, ledgerEntrySchema, type LedgerHead, type LedgerLine } from "./ledger.ts";

/** Something that does not hold, at the entry where it shows. */
export interface LedgerFinding {
  seq: number;
  /** A sentence for a person. */
  message: string;
}

/** What an audit found. */
export interface LedgerVerdict {
  ok: boolean;
  findings: LedgerFinding[];
  /** Findings that were too many to keep. */
  moreFindings: number;
  entries: number;
  bindings: number;
  releases: number;
  /** Requests refused. */
  denials: number;
  tenants: number;
  /** Ever bound, by kind; `poolMembers` are those of the machines that waited in a pool. */
  bound: { sandboxes: number; machines: number; poolMembers: number; snapshots: number; images: number };
  /** Bound now. */
  held: { sandboxes: number; machines: number; addresses: number; snapshots: number; images: number };
  /** Hash of the last entry; the ledger's id when there is none. */
  lastHash: string;
  ledger: string | null;
}

/** What the ledger says of one sandbox so far. */
interface SandboxHoldings {
  owner: string;
  isReleased: boolean;
  machine: string | null;
  machineNumber: number;
  generation: number;
  addresses: Set<string>;
  images: Set<string>;
}

/** One sandbox's time with an address, in its host's count. */
interface Tenure {
  sandboxId: string;
  /** The entry that says so. */
  seq: number;
  from: number;
  /** Null while it lasts; undefined when it is over and not known since when. */
  until: number | null | undefined;
}

interface OwnedImage {
  owner: string;
  sandboxId: string;
  isReleased: boolean;
}

const MAX_FINDINGS = 100;
const ID_BEFORE_ANY = 0;

/**
 * Reads a ledger from its first entry to its last and checks two things: that the chain is whole, and what it is to prove:
 *
 * - no id of a sandbox, machine, snapshot or image is ever bound twice, so none ever serves two tenants;
 * - a machine serves one sandbox, and a sandbox has one machine at a time;
 * - memory goes into machines of its own tenant alone: a snapshot into its tenant's, an image into its sandbox's;
 * - no address is held by two at once;
 * - what is released was held by who releases it, and an ended sandbox holds nothing.
 */
export class LedgerAudit {
  readonly #sha256: (text: string) => string;
  readonly #checkpoints: readonly Pick<LedgerHead, "ledger" | "seq" | "hash">[];
  readonly #sandboxes = new Map<string, SandboxHoldings>();
  /** By machine: the sandbox it serves, or served. */
  readonly #machines = new Map<string, string>();
  readonly #snapshots = new Map<string, OwnedImage>();
  readonly #images = new Map<string, OwnedImage>();
  /** By host and address: who has had it. */
  readonly #addresses = new Map<string, Tenure[]>();
  readonly #tenants = new Set<string>();
  readonly #findings: LedgerFinding[] = [];
  readonly #reached = new Set<number>();
  #findingCount = 0;
  #ledger: string | null = null;
  #lastHash = "";
  #lastSeq = ID_BEFORE_ANY;
  #bindings = 0;
  #releases = 0;
  #denials = 0;
  #poolMembers = 0;

  /**
   * @param sha256 of a text's UTF-8 bytes, in hexadecimal
   * @param checkpoints heads that the ledger must have come through
   */
  constructor(
    sha256: (text: string) => string,
    checkpoints: readonly Pick<LedgerHead, "ledger" | "seq" | "hash">[] = [],
  ) {
    this.#sha256 = sha256;
    this.#checkpoints = checkpoints;
  }

  /** Reads the next entry. */
  add(line: LedgerLine): void {
    const at = this.#lastSeq + 1;
    if (line.seq !== at)
      this.#find(
        line.seq,
        `is not the next one: ${at} was to come, so some are missing, doubled or out of order`,
      );
    const hash = this.#sha256(line.entry);
    if (hash !== line.hash)
      this.#find(line.seq, "was changed: its text does not have the hash it was written with");
    const entry = parseEntry(line.entry);
    if (entry === undefined) this.#find(line.seq, "cannot be read as an entry");
    else {
      this.#checkPlace(line, entry);
      this.#checkMeaning(entry);
    }
    // The hash of what is there: a changed entry then also breaks the link of the one after it.
    this.#lastHash = hash;
    this.#lastSeq = line.seq;
    for (const [index, checkpoint] of this.#checkpoints.entries()) {
      if (checkpoint.seq !== line.seq) continue;
      this.#reached.add(index);
      if (checkpoint.hash !== hash)
        this.#find(
          line.seq,
          "is another entry than the one its checkpoint was signed for: history was rewritten",
        );
    }
  }

  /** @param head how far the store says that its ledger goes */
  finish(head?: LedgerHead): LedgerVerdict {
    const { size: sandboxes } = this.#sandboxes;
    this.#checkAddresses();
    if (head !== undefined) {
      if (this.#ledger !== null && head.ledger !== this.#ledger)
        this.#find(1, `belongs to ledger ${this.#ledger}, not to ${head.ledger}`);
      if (head.seq !== this.#lastSeq || head.hash !== (this.#lastHash === "" ? head.ledger : this.#lastHash))
        this.#find(
          this.#lastSeq,
          `is the last one there is, but the ledger goes to ${head.seq}: its end was cut off or replaced`,
        );
    }
    for (const [index, { ledger, seq }] of this.#checkpoints.entries()) {
      if (this.#ledger !== null && ledger !== this.#ledger)
        this.#find(1, `belongs to ledger ${this.#ledger}; the checkpoint is of ${ledger}`);
      if (seq > 0 && !this.#reached.has(index))
        this.#find(
          this.#lastSeq,
          `is the last one there is, but a checkpoint was signed at ${seq}: the end was cut off`,
        );
    }
    const living = [...this.#sandboxes.values()];
    const count = <T>(values: Iterable<T>, holds: (value: T) => boolean): number => {
      let found = 0;
      for (const value of values) if (holds(value)) found += 1;
      return found;
    };
    return {
      ok: this.#findingCount === 0,
      findings: this.#findings,
      moreFindings: this.#findingCount - this.#findings.length,
      entries: this.#lastSeq,
      bindings: this.#bindings,
      releases: this.#releases,
      denials: this.#denials,
      tenants: this.#tenants.size,
      bound: {
        sandboxes,
        machines: this.#machines.size,
        poolMembers: this.#poolMembers,
        snapshots: this.#snapshots.size,
        images: this.#images.size,
      },
      held: {
        sandboxes: count(living, ({ isReleased }) => !isReleased),
        machines: count(living, ({ machine }) => machine !== null),
        addresses: count(living, ({ addresses }) => addresses.size > 0),
        snapshots: count(this.#snapshots.values(), ({ isReleased }) => !isReleased),
        images: count(this.#images.values(), ({ isReleased }) => !isReleased),
      },
      lastHash: this.#lastHash,
      ledger: this.#ledger,
    };
  }

  #find(seq: number, message: string): void {
    this.#findingCount += 1;
    if (this.#findings.length < MAX_FINDINGS)
      this.#findings.push({ seq, message: `entry ${seq} ${message}` });
  }

  /** Its link to the one before, and what the store finds it by. */
  #checkPlace(line: LedgerLine, entry: LedgerEntry): void {
    if (this.#lastSeq === ID_BEFORE_ANY) this.#ledger = entry.prev;
    else if (entry.prev !== this.#lastHash)
      this.#find(line.seq, "does not follow the one before it: the chain is broken here");
    if (entry.seq !== line.seq) this.#find(line.seq, `says that it is entry ${entry.seq}`);
    for (const column of ["account", "tenant", "sandbox_id"] as const)
      if (entry[column] !== line[column])
        this.#find(
          line.seq,
          `is filed under another ${column} (${line[column]}) than it says (${entry[column]})`,
        );
  }

  #checkMeaning(entry: LedgerEntry): void {
    if (entry.action === "deny") {
      this.#denials += entry.count ?? 1;
      return;
    }
    this.#tenants.add(ownerOf(entry));
    for (const resource of entry.resources) {
      if (entry.action === "bind") this.#bind(entry, resource);
      else this.#release(entry, resource);
    }
  }

  #bind(entry: LedgerEntry, resource: LedgerEntry["resources"][number]): void {
    this.#bindings += 1;
    const { kind, id } = resource;
    const owner = ownerOf(entry);
    const find = (message: string): void => this.#find(entry.seq, message);
    if (kind === "snapshot" || kind === "image") {
      const known = kind === "snapshot" ? this.#snapshots : this.#images;
      const earlier = known.get(id);
      if (earlier !== undefined)
        find(`binds ${kind} ${id} again: it was ${shownOwner(earlier.owner)}'s already`);
      known.set(id, { owner, sandboxId: entry.sandbox_id ?? "", isReleased: false });
      // One that is older than the ledger may have outlived its sandbox.
      const sandbox = entry.actor === "system:migration" ? undefined : this.#require(entry, kind, id);
      if (kind === "image") sandbox?.images.add(id);
      return;
    }
    if (kind === "sandbox") {
      const earlier = this.#sandboxes.get(id);
      if (earlier !== undefined)
        find(`binds sandbox ${id} again: it was ${shownOwner(earlier.owner)}'s already`);
      if (entry.sandbox_id !== id) find(`binds sandbox ${id} in the name of another (${entry.sandbox_id})`);
      this.#sandboxes.set(id, {
        owner,
        isReleased: false,
        machine: null,
        machineNumber: 0,
        generation: 0,
        addresses: new Set(),
        images: new Set(),
      });
      return;
    }
    const sandbox = this.#require(entry, kind, id);
    if (sandbox?.isReleased === true)
      find(`binds ${kind} ${id} to sandbox ${entry.sandbox_id}, which had ended`);
    if (kind === "address") {
      const key = addressKey(entry, id);
      const tenures = this.#addresses.get(key) ?? [];
      const sandboxId = entry.sandbox_id ?? "";
      if (resource.turn === undefined) find(`binds address ${id} and does not say at which turn of its host`);
      tenures.push({ sandboxId, seq: entry.seq, from: resource.turn ?? 0, until: null });
      this.#addresses.set(key, tenures);
      sandbox?.addresses.add(key);
      return;
    }
    const earlier = this.#machines.get(id);
    if (earlier !== undefined) find(`binds machine ${id}, which has served sandbox ${earlier} before`);
    this.#machines.set(id, entry.sandbox_id ?? "");
    if (resource.source === "pool") this.#poolMembers += 1;
    this.#checkOrigin(entry, resource);
    if (sandbox === undefined) return;
    if (sandbox.machine !== null)
      find(`binds machine ${id} to sandbox ${entry.sandbox_id}, which still has machine ${sandbox.machine}`);
    const number = resource.number ?? 0;
    if (number !== sandbox.machineNumber + 1)
      find(
        `binds machine number ${number} of sandbox ${entry.sandbox_id} after number ${sandbox.machineNumber}: those between are unaccounted for`,
      );
    if ((entry.generation ?? 0) < sandbox.generation)
      find(
        `takes sandbox ${entry.sandbox_id} back from generation ${sandbox.generation} to ${entry.generation}`,
      );
    sandbox.machine = id;
    sandbox.machineNumber = number;
    sandbox.generation = entry.generation ?? 0;
  }

  /** No two had one address at once, in the order in which its host gave it and took it back. */
  #checkAddresses(): void {
    for (const [key, tenures] of this.#addresses) {
      const inOrder = tenures.toSorted((a, b) => a.from - b.from);
      for (const [index, { sandboxId, seq, from }] of inOrder.entries()) {
        const before = inOrder[index - 1];
        if (before === undefined || before.until === undefined) continue;
        if (before.until === null || before.until >= from)
          this.#find(
            seq,
            `binds address ${key.split(" ")[1]} to sandbox ${sandboxId} while sandbox ${before.sandboxId} still held it`,
          );
      }
    }
  }

  /** Memory that went into a machine was its tenant's own. */
  #checkOrigin(entry: LedgerEntry, { id, source, from }: LedgerEntry["resources"][number]): void {
    if (source !== "snapshot" && source !== "image") return;
    const origin = (source === "snapshot" ? this.#snapshots : this.#images).get(from ?? "");
    const find = (message: string): void =>
      this.#find(entry.seq, `restores ${source} ${from} into machine ${id}, ${message}`);
    if (origin === undefined) find("and nothing is known of where that came from");
    else if (origin.owner !== ownerOf(entry))
      find(`of ${shownOwner(ownerOf(entry))}; it is ${shownOwner(origin.owner)}'s`);
    else if (source === "image" && origin.sandboxId !== entry.sandbox_id)
      find(`of sandbox ${entry.sandbox_id}; it is sandbox ${origin.sandboxId}'s`);
  }

  #release(entry: LedgerEntry, { kind, id, turn }: LedgerEntry["resources"][number]): void {
    this.#releases += 1;
    const find = (message: string): void => this.#find(entry.seq, message);
    if (kind === "snapshot" || kind === "image") {
      const image = (kind === "snapshot" ? this.#snapshots : this.#images).get(id);
      if (image === undefined || image.isReleased) find(`releases ${kind} ${id}, which was not held`);
      else if (image.owner !== ownerOf(entry) || image.sandboxId !== entry.sandbox_id)
        find(`releases ${kind} ${id} of ${shownOwner(image.owner)} in the name of another`);
      if (image !== undefined) image.isReleased = true;
      if (kind === "image") this.#sandboxes.get(entry.sandbox_id ?? "")?.images.delete(id);
      return;
    }
    const sandbox = this.#require(entry, kind, id);
    if (kind === "address") {
      const key = addressKey(entry, id);
      const tenure = this.#addresses
        .get(key)
        ?.find(({ sandboxId, until }) => sandboxId === entry.sandbox_id && until === null);
      if (tenure === undefined) find(`releases address ${id}, which its sandbox did not hold`);
      else {
        if (turn !== undefined && turn <= tenure.from) find(`releases address ${id} before it was given`);
        tenure.until = turn;
      }
      sandbox?.addresses.delete(key);
    } else if (sandbox === undefined) return;
    else if (kind === "machine") {
      if (sandbox.machine !== id) find(`releases machine ${id}, which its sandbox did not have`);
      sandbox.machine = null;
    } else {
      if (sandbox.isReleased) find(`releases sandbox ${id} again`);
      if (sandbox.machine !== null || sandbox.addresses.size > 0 || sandbox.images.size > 0)
        find(`ends sandbox ${id}, which still holds a machine, an address or an image`);
      sandbox.isReleased = true;
    }
  }

  /** The sandbox that an entry is about, which must be its tenant's. */
  #require(entry: LedgerEntry, kind: string, id: string): SandboxHoldings | undefined {
    const sandbox = this.#sandboxes.get(entry.sandbox_id ?? "");
    if (sandbox === undefined)
      this.#find(
        entry.seq,
        `is about ${kind} ${id} of sandbox ${entry.sandbox_id}, which was bound to nobody`,
      );
    else if (sandbox.owner !== ownerOf(entry))
      this.#find(
        entry.seq,
        `gives ${kind} ${id} of sandbox ${entry.sandbox_id} to ${shownOwner(ownerOf(entry))}; the sandbox is ${shownOwner(sandbox.owner)}'s`,
      );
    return sandbox;
  }
}

function parseEntry(text: string): LedgerEntry | undefined {
  try {
    return ledgerEntrySchema.parse(JSON.parse(text));
  } catch {
    return undefined;
  }
}

function addressKey({ host }: LedgerEntry, address: string): string {
  return `${host} ${address}`;
}

function ownerOf({ account, tenant }: LedgerEntry): string {
  return JSON.stringify([account, tenant]);
}

function shownOwner(owner: string): string {
  const [account, tenant] = JSON.parse(owner) as [string, string | null];
  return tenant === null ? `account ${account}` : `tenant ${tenant} (account ${account})`;
}
