import { createHash, randomBytes } from "node:crypto";
import type { IncomingHttpHeaders } from "node:http";
import type { Clock, Log } from "@torpor/base";
import { CodedError, holdsScope, type Scope } from "@torpor/protocol";
import type { DenialLog } from "../ledger/denial-log.ts";
import type { KeyRecord, KeyStore } from "../store/key-store.ts";
import { keyRefusal } from "./key-refusal.ts";
import { OperatorScope, TenantScope } from "./tenant-scope.ts";

/** Who asks, proven. */
export interface Caller {
  readonly key: KeyRecord;
  readonly scope: TenantScope;
  /** Given when its key has the scope `operator`. */
  readonly operator: OperatorScope | undefined;
}

/** A key wherever it stands in a text, also in the form that E2B's clients take: no log line tells one. */
export const API_KEY_ANYWHERE = /tp_[A-Za-z0-9]{40}|e2b_[0-9a-f]{86}/g;
/** `tp_` and 40 characters of 62: 238 bits. */
const KEY_PATTERN = /^tp_[A-Za-z0-9]{40}$/;
const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
const KEY_CHARACTERS = 40;
/** Characters of a key that are kept readable, to recognise it by. */
const PREFIX_CHARACTERS = 9;
/** `last_used_at` is written at most this often, so that a busy key costs no write per request. */
const USED_EVERY_MS = 60_000;

/** A new random API key. */
export function newApiKey(): string {
  let text = "tp_";
  while (text.length < "tp_".length + KEY_CHARACTERS) {
    // Bytes above the last whole multiple of 62 are dropped: every character is equally likely.
    for (const byte of randomBytes(64))
      if (byte < 248 && text.length < 3 + KEY_CHARACTERS) text += ALPHABET[byte % 62];
  }
  return text;
}

/** Whether `text` looks like one of our keys. */
export function isApiKey(text: string): boolean {
  return KEY_PATTERN.test(text);
}

/** SHA-256, hexadecimal. The key has 238 random bits, so a slow hash would add nothing. */
export function hashApiKey(key: string): string {
  return createHash("sha256").update(key).digest("hex");
}

/** The part of a key that may be shown. */
export function apiKeyPrefix(key: string): string {
  return key.slice(0, PREFIX_CHARACTERS);
}

/** Turns request headers into a caller. The store is read each time, so a revoked key stops at once. */
export class Authenticator {
  readonly #keys: KeyStore;
  readonly #clock: Clock;
  readonly #log: Log;
  /** When each key was last marked used, so that one minute's requests share one write. */
  readonly #markedAt = new Map<string, number>();

  readonly #denials: DenialLog;

  /** @param denials told of each known key that is refused */
  constructor(keys: KeyStore, clock: Clock, log: Log, denials: DenialLog) {
    this.#keys = keys;
    this.#clock = clock;
    this.#log = log;
    this.#denials = denials;
  }

  /**
   * @param route method and path as the reference has them: what is asked
   * @throws CodedError unauthenticated, permission_denied
   */
  async authenticate(headers: IncomingHttpHeaders, needed: Scope, route: string): Promise<Caller> {
    const presented = presentedKey(headers);
    if (!isApiKey(presented))
      throw new CodedError(
        "unauthenticated",
        "the API key is not valid: a Torpor key is 'tp_' and 40 letters or digits",
      );
    const key = await this.#keys.findByHash(hashApiKey(presented));
    if (key === undefined)
      throw new CodedError(
        "unauthenticated",
        `the API key ${apiKeyPrefix(presented)}… is not known here; check that it belongs to this server`,
      );
    const now = this.#clock.now();
    const refusal = keyRefusal(key, now);
    if (refusal !== undefined) {
      this.#denials.note(key, route, key.revokedAt === null ? "key_expired" : "key_revoked");
      throw refusal;
    }
    if (!holdsScope(key.scopes, needed)) {
      this.#denials.note(key, route, "permission_denied");
      throw new CodedError(
        "permission_denied",
        `the API key ${key.prefix}… (${key.name}) lacks the scope ${needed}; it has ${key.scopes.join(", ")}`,
        { details: { needed, scopes: [...key.scopes] } },
      );
    }
    this.#markUsed(key, now);
    return {
      key,
      scope: TenantScope.fromVerifiedKey({ keyId: key.id, account: key.account, tenant: key.tenant }),
      operator: holdsScope(key.scopes, "operator") ? OperatorScope.fromVerifiedKey(key.id) : undefined,
    };
  }

  #markUsed(key: KeyRecord, now: number): void {
    const marked = Math.max(this.#markedAt.get(key.id) ?? 0, key.lastUsedAt ?? 0);
    if (now - marked < USED_EVERY_MS) return;
    if (this.#markedAt.size > 10_000) this.#markedAt.clear();
    this.#markedAt.set(key.id, now);
    this.#keys
      .markUsed(key, now)
      .catch((error: unknown) => this.#log.warn({ op: "key.used", outcome: "not recorded", err: error }));
  }
}

/** `e2b_` and the key's UTF-8 in hexadecimal: E2B's clients of before 2.51 take only keys of such letters. */
const E2B_KEY_PATTERN = /^e2b_((?:[0-9a-f]{2})+)$/;

function plainKey(text: string): string {
  const hex = E2B_KEY_PATTERN.exec(text)?.[1];
  return hex === undefined ? text : Buffer.from(hex, "hex").toString("utf8");
}

function presentedKey(headers: IncomingHttpHeaders): string {
  const { authorization } = headers;
  if (authorization !== undefined) {
    const match = /^Bearer +(\S+) *$/i.exec(authorization);
    if (match?.[1] === undefined)
      throw new CodedError("unauthenticated", "the Authorization header is not of the form 'Bearer tp_…'");
    return plainKey(match[1]);
  }
  const header = headers["x-api-key"];
  if (typeof header === "string") return plainKey(header.trim());
  throw new CodedError(
    "unauthenticated",
    "no API key was sent; send 'Authorization: Bearer tp_…' or 'X-API-Key: tp_…' (torpor up prints where the first key is)",
  );
}
