import { createHash, createHmac } from "node:crypto";

/**
 * Tells whether a request has the body that an earlier one had. The hashes are keyed, since a body may hold secrets: from
 * a hash alone nobody can find out by trying.
 */
export class BodyHashes {
  readonly #secret: Buffer;

  /** @param secret the same for all servers of a store */
  constructor(secret: Buffer) {
    this.#secret = secret;
  }

  /** HMAC-SHA256 of the body's SHA-256, hexadecimal. */
  of(body: Buffer): string {
    return keyedBodyHash(this.#secret, createHash("sha256").update(body).digest("hex"));
  }
}

/** Of a body whose SHA-256, hexadecimal, is known. */
export function keyedBodyHash(secret: Buffer, bodyHash: string): string {
  return createHmac("sha256", secret).update(bodyHash).digest("hex");
}
