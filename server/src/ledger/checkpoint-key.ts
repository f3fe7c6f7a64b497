import { createPrivateKey, createPublicKey, generateKeyPairSync, type KeyObject, sign } from "node:crypto";
import { readPrivateFile, writePrivateFile } from "@torpor/base";
import { checkpointText, type LedgerCheckpoint, type LedgerHead } from "@torpor/protocol";

/** Signs checkpoints of the ledger (Ed25519). */
export class CheckpointKey {
  readonly #privateKey: KeyObject;
  /** PEM (SPKI). */
  readonly publicKey: string;

  private constructor(privateKey: KeyObject) {
    this.#privateKey = privateKey;
    this.publicKey = createPublicKey(privateKey).export({ type: "spki", format: "pem" }) as string;
  }

  /** One that goes with this process. */
  static random(): CheckpointKey {
    return new CheckpointKey(generateKeyPairSync("ed25519").privateKey);
  }

  /**
   * The key in `file` (PEM, PKCS #8, mode 0600), made when there is none.
   *
   * @throws Error when it cannot be read or written, or holds something else: another key is never put in its place
   */
  static open(file: string): CheckpointKey {
    const text = readPrivateFile(file)?.toString("utf8");
    if (text === undefined) {
      const key = CheckpointKey.random();
      writePrivateFile(file, key.#privateKey.export({ type: "pkcs8", format: "pem" }));
      return key;
    }
    try {
      const privateKey = createPrivateKey(text);
      if (privateKey.asymmetricKeyType !== "ed25519")
        throw new Error(`it is of type ${privateKey.asymmetricKeyType}`);
      return new CheckpointKey(privateKey);
    } catch (cause) {
      const why = cause instanceof Error ? cause.message : String(cause);
      throw new Error(
        `${file} does not hold the Ed25519 key that signs the ledger's checkpoints (${why}); restore it from a backup, or move it away and the next start makes another`,
        { cause },
      );
    }
  }

  /** States that the ledger goes to `head` at `now`, Unix milliseconds. */
  sign({ ledger, seq, hash }: LedgerHead, now: number): LedgerCheckpoint {
    const stated = { ledger, seq, hash, at: new Date(now).toISOString() };
    const signature = sign(null, Buffer.from(checkpointText(stated), "utf8"), this.#privateKey);
    return { ...stated, public_key: this.publicKey, signature: signature.toString("base64") };
  }
}
