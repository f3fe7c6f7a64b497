import { createHash, createHmac, timingSafeEqual } from "node:crypto";
import type { SandboxRecord } from "../store/sandbox-record.ts";

/**
 * The tokens that E2B's clients are given for one sandbox. They are made from the store's secret and the sandbox's id: the
 * same on every server, after every restart and every sleep, and of no use elsewhere.
 */
export class E2bTokens {
  readonly #secret: Buffer;

  /** @param secret 256 random bits, the store's */
  constructor(secret: Buffer) {
    this.#secret = secret;
  }

  /** What its agent and its code interpreter ask for, as `X-Access-Token`. */
  agentToken({ id }: SandboxRecord): string {
    return this.agentTokenOf(id);
  }

  /** What its other ports ask for when they are not public, as `E2B-Traffic-Access-Token`. */
  trafficToken({ id }: SandboxRecord): string {
    return this.#token("traffic", id);
  }

  /** As {@link E2bTokens.agentToken}, for whoever looks for the sandbox of a signature. */
  agentTokenOf(id: string): string {
    return this.#token("agent", id);
  }

  #token(kind: string, id: string): string {
    return createHmac("sha256", this.#secret).update(`${kind} ${id}`).digest("hex");
  }
}

/** Whether a presented token is the right one, in a time that does not tell how much of it is. */
export function isToken(presented: unknown, token: string): boolean {
  if (typeof presented !== "string") return false;
  const digest = (text: string): Buffer => createHash("sha256").update(text).digest();
  return timingSafeEqual(digest(presented), digest(token));
}
