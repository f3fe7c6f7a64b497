import { createCipheriv, createDecipheriv, randomBytes } from "node:crypto";
import { readPrivateFile, writePrivateFile } from "@torpor/base";
import { CodedError } from "@torpor/protocol";

const CIPHER = "aes-256-gcm";
const KEY_BYTES = 32;
/** As NIST SP 800-38D recommends for GCM: 96 bits, random. */
const NONCE_BYTES = 12;
const TAG_BYTES = 16;
const VERSION = "v1:";

/**
 * Seals the secrets of sandboxes for the journal and for the manifests of images, from where they are given again at
 * each restore. The key lies in a file of the host alone (0600): a copy of the journal or of an image tells nothing of
 * them. What is sealed for one tenant opens for no other.
 */
export class SecretBox {
  readonly #key: Buffer;
  readonly #file: string;

  private constructor(key: Buffer, file: string) {
    this.#key = key;
    this.#file = file;
  }

  /** Takes the key of `file`, made on the first start. @throws Error when the file holds something else */
  static open(file: string): SecretBox {
    return new SecretBox(readKey(file) ?? makeKey(file), file);
  }

  /** @returns undefined when there is nothing to seal */
  seal(secrets: Readonly<Record<string, string>>, tenant: string): string | undefined {
    if (Object.keys(secrets).length === 0) return undefined;
    const nonce = randomBytes(NONCE_BYTES);
    const cipher = createCipheriv(CIPHER, this.#key, nonce).setAAD(Buffer.from(tenant));
    const sealed = Buffer.concat([cipher.update(JSON.stringify(secrets), "utf8"), cipher.final()]);
    return VERSION + Buffer.concat([nonce, cipher.getAuthTag(), sealed]).toString("base64");
  }

  /** @throws CodedError `internal` when it was sealed with another key, for another tenant, or has been changed */
  unseal(sealed: string | undefined, tenant: string): Record<string, string> {
    if (sealed === undefined) return {};
    try {
      if (!sealed.startsWith(VERSION)) throw new Error(`it does not begin with ${VERSION}`);
      const bytes = Buffer.from(sealed.slice(VERSION.length), "base64");
      const body = NONCE_BYTES + TAG_BYTES;
      const opener = createDecipheriv(CIPHER, this.#key, bytes.subarray(0, NONCE_BYTES))
        .setAAD(Buffer.from(tenant))
        .setAuthTag(bytes.subarray(NONCE_BYTES, body));
      const text = Buffer.concat([opener.update(bytes.subarray(body)), opener.final()]).toString("utf8");
      return JSON.parse(text) as Record<string, string>;
    } catch (cause) {
      throw new CodedError(
        "internal",
        `the secrets of a sandbox of tenant ${tenant} cannot be opened with ${this.#file}: the file is not the one they were sealed with, or their record was changed; put the right file back and try again`,
        { cause },
      );
    }
  }
}

function readKey(file: string): Buffer | undefined {
  const key = readPrivateFile(file);
  if (key === undefined || key.length === KEY_BYTES) return key;
  throw new Error(
    `${file} does not hold a key of ${KEY_BYTES} bytes: put the right one back. Without it the secrets of sandboxes and snapshots are lost; if they may be, move the file away and the next start makes a new one`,
  );
}

/** Durable before anything is sealed with it. */
function makeKey(file: string): Buffer {
  const key = randomBytes(KEY_BYTES);
  writePrivateFile(file, key);
  return key;
}
