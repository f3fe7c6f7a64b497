/** A handshake record and its header are at most this long (RFC 8446, 5.1 and 5.2), bytes. */
const MAX_RECORD_BYTES = 16_384 + 256;
/** Far above any client's: large post-quantum key shares make some 2 KiB. */
const MAX_HELLO_BYTES = 32_768;
const RECORD_HEADER_BYTES = 5;
/** Type and length of a handshake message. */
const HANDSHAKE_HEADER_BYTES = 4;
const HANDSHAKE_RECORD = 22;
const CLIENT_HELLO = 1;
const EXTENSION = { serverName: 0, encryptedClientHello: 0xfe0d } as const;

export type ClientHello =
  | {
      /** Lower case; undefined when the client names no server. */
      serverName: string | undefined;
      /** What the client really wants may stand in a part that only the server can read. */
      isEncrypted: boolean;
    }
  | { problem: string };

/** Reads a TLS ClientHello (RFC 8446, 4.1.2; RFC 6066, 3) as it comes in, in whatever pieces and records. */
export class ClientHelloReader {
  #unread: Buffer = Buffer.alloc(0);
  #records: Buffer[] = [];
  #recordBytes = 0;
  /** Known once its header is there. */
  #helloBytes: number | undefined;

  /** @returns undefined while more is to come */
  push(chunk: Buffer): ClientHello | undefined {
    this.#unread = this.#unread.length === 0 ? chunk : Buffer.concat([this.#unread, chunk]);
    while (this.#unread.length > 0) {
      if (this.#unread[0] !== HANDSHAKE_RECORD) return { problem: "is no TLS" };
      if (this.#unread.length < RECORD_HEADER_BYTES) return undefined;
      const length = this.#unread.readUInt16BE(3);
      if (this.#unread[1] !== 3 || length === 0 || length > MAX_RECORD_BYTES)
        return { problem: "is no TLS handshake" };
      if (this.#unread.length < RECORD_HEADER_BYTES + length) return undefined;
      this.#records.push(this.#unread.subarray(RECORD_HEADER_BYTES, RECORD_HEADER_BYTES + length));
      this.#recordBytes += length;
      this.#unread = this.#unread.subarray(RECORD_HEADER_BYTES + length);
      if (this.#recordBytes < HANDSHAKE_HEADER_BYTES + (this.#helloBytes ?? 0)) continue;
      // Put together when its length is known and when it is whole: of records of a byte each, not at every one of them.
      const handshake = Buffer.concat(this.#records);
      this.#records = [handshake];
      if (handshake[0] !== CLIENT_HELLO) return { problem: "begins with no ClientHello" };
      const helloBytes = (this.#helloBytes = handshake.readUIntBE(1, 3));
      if (helloBytes > MAX_HELLO_BYTES) return { problem: "has too long a ClientHello" };
      const end = HANDSHAKE_HEADER_BYTES + helloBytes;
      if (handshake.length >= end) return readHello(handshake.subarray(HANDSHAKE_HEADER_BYTES, end));
    }
    return undefined;
  }
}

/** Fields one after the other; what does not fit throws. */
class Fields {
  readonly #bytes: Buffer;
  #at = 0;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  get isAtEnd(): boolean {
    return this.#at === this.#bytes.length;
  }

  take(length: number): Buffer {
    if (this.#at + length > this.#bytes.length)
      throw new RangeError("a field is longer than what it stands in");
    this.#at += length;
    return this.#bytes.subarray(this.#at - length, this.#at);
  }

  number(bytes: 1 | 2): number {
    return this.take(bytes).readUIntBE(0, bytes);
  }

  /** A field that begins with its length. */
  vector(lengthBytes: 1 | 2): Buffer {
    return this.take(this.number(lengthBytes));
  }
}

function readHello(hello: Buffer): ClientHello {
  try {
    const fields = new Fields(hello);
    fields.take(2 + 32); // version, random
    fields.vector(1); // session
    fields.vector(2); // cipher suites
    fields.vector(1); // compression
    if (fields.isAtEnd) return { serverName: undefined, isEncrypted: false };
    const extensions = new Fields(fields.vector(2));
    if (!fields.isAtEnd) return { problem: "has a broken ClientHello" };
    let serverName: string | undefined;
    let isEncrypted = false;
    while (!extensions.isAtEnd) {
      const type = extensions.number(2);
      const body = extensions.vector(2);
      if (type === EXTENSION.encryptedClientHello) isEncrypted = true;
      if (type !== EXTENSION.serverName) continue;
      // A server may go by another of several.
      if (serverName !== undefined) return { problem: "names two servers" };
      serverName = readServerName(body);
    }
    return { serverName, isEncrypted };
  } catch (error) {
    if (error instanceof RangeError) return { problem: "has a broken ClientHello" };
    throw error;
  }
}

/** @throws RangeError for anything but one host name */
function readServerName(body: Buffer): string {
  const outer = new Fields(body);
  const list = new Fields(outer.vector(2));
  const type = list.number(1);
  const name = list.vector(2).toString("latin1").toLowerCase();
  if (type !== 0 || !list.isAtEnd || !outer.isAtEnd)
    throw new RangeError("the server's name is no single host name");
  return name;
}
