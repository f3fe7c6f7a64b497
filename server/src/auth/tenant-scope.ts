/** What an API key may touch, as the store's functions take it. */
export interface KeyIdentity {
  readonly keyId: string;
  readonly account: string;
  /** The one tenant the key is bound to, or null for all of the account's. */
  readonly tenant: string | null;
}

/**
 * Proof that a request was authenticated, and the bounds of what it may see. Nominal (a private field), so a plain
 * object cannot stand in for it: a store function that takes one cannot be called with what a request merely claims.
 */
export class TenantScope {
  readonly #identity: KeyIdentity;

  private constructor(identity: KeyIdentity) {
    this.#identity = identity;
  }

  /** For authentication alone: `identity` comes from a key whose hash matched a live row. */
  static fromVerifiedKey(identity: KeyIdentity): TenantScope {
    return new TenantScope(identity);
  }

  /** Id of the key: who asks, as the ledger has it. */
  get keyId(): string {
    return this.#identity.keyId;
  }

  get account(): string {
    return this.#identity.account;
  }

  /** The tenant the caller is bound to, or null when it may see every tenant of its account. */
  get tenant(): string | null {
    return this.#identity.tenant;
  }
}

/** Proof that the caller runs this server: its key may make accounts, and see and limit those of others. */
export class OperatorScope {
  readonly #keyId: string;

  private constructor(keyId: string) {
    this.#keyId = keyId;
  }

  /** For authentication alone: `keyId` is a live key's that has the scope `operator`. */
  static fromVerifiedKey(keyId: string): OperatorScope {
    return new OperatorScope(keyId);
  }

  get keyId(): string {
    return this.#keyId;
  }
}

/** Leave to deal with what is everybody's: to count, to forget what is past its time, to build templates. */
export class ServerScope {
  readonly #why: string;

  private constructor(why: string) {
    this.#why = why;
  }

  /** For the server's own work, which no request asked for. */
  static forHousekeeping(): ServerScope {
    return new ServerScope("housekeeping");
  }

  /** For `requireWholeServer` alone: `keyId` is a key's that speaks for the whole server. */
  static fromVerifiedKey(keyId: string): ServerScope {
    return new ServerScope(keyId);
  }

  /** `housekeeping`, or the id of the key. */
  get why(): string {
    return this.#why;
  }
}

/** The bounds of what a host may report on: the sandboxes placed on it and no others. */
export class HostScope {
  readonly #hostId: string;

  private constructor(hostId: string) {
    this.#hostId = hostId;
  }

  /** For the host link alone: `hostId` is what the authenticated host calls itself. */
  static fromHostLink(hostId: string): HostScope {
    return new HostScope(hostId);
  }

  get hostId(): string {
    return this.#hostId;
  }
}
