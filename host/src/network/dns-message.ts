/** What this resolver needs of DNS messages (RFC 1035, RFC 6891): one question in, addresses and sizes out. */

export const RECORD_TYPE = {
  A: 1,
  PTR: 12,
  AAAA: 28,
  OPT: 41,
  SVCB: 64,
  HTTPS: 65,
  TKEY: 249,
  ANY: 255,
} as const;
export const RESPONSE_CODE = { NOERROR: 0, FORMERR: 1, SERVFAIL: 2, NOTIMP: 4, REFUSED: 5 } as const;

const HEADER_BYTES = 12;
const CLASS_IN = 1;
/** A message without EDNS is at most this long over UDP. */
const PLAIN_UDP_BYTES = 512;
const FLAG = {
  response: 0x8000,
  truncated: 0x0200,
  recursionDesired: 0x0100,
  recursionAvailable: 0x0080,
} as const;

export interface DnsQuestion {
  id: number;
  /** Lower case, without a dot at its end; empty for the root. */
  name: string;
  type: number;
  isInternetClass: boolean;
  recursionDesired: boolean;
  /** Longest answer over UDP the asker takes, bytes. */
  udpBytes: number;
  hasEdns: boolean;
  /** Name, type and class as they came. */
  wire: Buffer;
}

/**
 * Reads a question.
 *
 * @returns undefined for what deserves no answer; a response code for what is answered with that alone
 */
export function readQuestion(message: Buffer): DnsQuestion | { code: number } | undefined {
  if (message.length < HEADER_BYTES) return undefined;
  const flags = message.readUInt16BE(2);
  if ((flags & FLAG.response) !== 0) return undefined;
  if (((flags >> 11) & 15) !== 0) return { code: RESPONSE_CODE.NOTIMP };
  if (message.readUInt16BE(4) !== 1) return { code: RESPONSE_CODE.FORMERR };
  const name = readName(message, HEADER_BYTES);
  if (name === undefined || name.end + 4 > message.length) return { code: RESPONSE_CODE.FORMERR };
  const end = name.end + 4;
  const edns = readEdns(message, end);
  return {
    id: message.readUInt16BE(0),
    name: name.text,
    type: message.readUInt16BE(name.end),
    isInternetClass: message.readUInt16BE(name.end + 2) === CLASS_IN,
    recursionDesired: (flags & FLAG.recursionDesired) !== 0,
    udpBytes: Math.min(Math.max(edns ?? PLAIN_UDP_BYTES, PLAIN_UDP_BYTES), 4096),
    hasEdns: edns !== undefined,
    wire: message.subarray(HEADER_BYTES, end),
  };
}

/** The name at `at`, without following pointers: a question has nothing to point to. */
function readName(message: Buffer, at: number): { text: string; end: number } | undefined {
  const labels: string[] = [];
  let next = at;
  for (;;) {
    const length = message[next];
    if (length === undefined || length > 63) return undefined;
    next += 1;
    if (length === 0) break;
    if (next + length > message.length || next + length - at > 254) return undefined;
    const label = message.toString("latin1", next, next + length);
    if (label.includes(".")) return undefined; // one label that would read as two
    labels.push(label);
    next += length;
  }
  return { text: labels.join(".").toLowerCase(), end: next };
}

/** The asker's UDP size, when the record that says so is the first behind the question, as all resolvers write it. */
function readEdns(message: Buffer, at: number): number | undefined {
  const isAlone =
    message.readUInt16BE(6) === 0 && message.readUInt16BE(8) === 0 && message.readUInt16BE(10) > 0;
  if (!isAlone || at + 11 > message.length || message[at] !== 0) return undefined;
  return message.readUInt16BE(at + 1) === RECORD_TYPE.OPT ? message.readUInt16BE(at + 3) : undefined;
}

/** An answer that says nothing but a code: an empty NOERROR stands for "no such record". */
export function emptyAnswer(
  question: Pick<DnsQuestion, "id" | "wire" | "recursionDesired">,
  code: number,
  truncated = false,
): Buffer {
  const header = Buffer.alloc(HEADER_BYTES);
  const flags =
    FLAG.response |
    FLAG.recursionAvailable |
    (question.recursionDesired ? FLAG.recursionDesired : 0) |
    (truncated ? FLAG.truncated : 0) |
    code;
  header.writeUInt16BE(question.id, 0);
  header.writeUInt16BE(flags, 2);
  header.writeUInt16BE(question.wire.length === 0 ? 0 : 1, 4);
  return Buffer.concat([header, question.wire]);
}

/** A question to ask upstream. */
export function writeQuestion(id: number, wire: Buffer, ednsBytes: number | undefined): Buffer {
  const header = Buffer.alloc(HEADER_BYTES);
  header.writeUInt16BE(id, 0);
  header.writeUInt16BE(FLAG.recursionDesired, 2);
  header.writeUInt16BE(1, 4);
  if (ednsBytes === undefined) return Buffer.concat([header, wire]);
  header.writeUInt16BE(1, 10);
  const option = Buffer.alloc(11);
  option.writeUInt16BE(RECORD_TYPE.OPT, 1);
  option.writeUInt16BE(ednsBytes, 3);
  return Buffer.concat([header, wire, option]);
}

/** The question for the addresses of a name, as {@link writeQuestion} takes it. @throws RangeError for what is no name */
export function addressQuestion(name: string): Buffer {
  const labels = name.split(".").map((label) => {
    const bytes = Buffer.from(label, "latin1");
    if (bytes.length < 1 || bytes.length > 63)
      throw new RangeError(`${JSON.stringify(name)} is no domain name`);
    return Buffer.concat([Buffer.from([bytes.length]), bytes]);
  });
  const wire = Buffer.concat([...labels, Buffer.from([0, 0, RECORD_TYPE.A, 0, CLASS_IN])]);
  if (wire.length > 259) throw new RangeError(`${JSON.stringify(name)} is longer than a domain name may be`);
  return wire;
}

export interface DnsAnswer {
  code: number;
  isTruncated: boolean;
  /** All IPv4 addresses it names in its answers. */
  addresses: string[];
}

/** Reads an upstream's answer. @returns undefined for what is no answer to that question, or is broken */
export function readAnswer(message: Buffer, id: number, wire: Buffer): DnsAnswer | undefined {
  const questionEnd = HEADER_BYTES + wire.length;
  if (message.length < questionEnd || message.readUInt16BE(0) !== id) return undefined;
  const flags = message.readUInt16BE(2);
  if ((flags & FLAG.response) === 0 || message.readUInt16BE(4) !== 1) return undefined;
  const asked = message.toString("latin1", HEADER_BYTES, questionEnd).toLowerCase();
  if (asked !== wire.toString("latin1").toLowerCase()) return undefined;
  const addresses: string[] = [];
  let at = questionEnd;
  for (let left = message.readUInt16BE(6); left > 0; left -= 1) {
    const fields = skipName(message, at);
    if (fields === undefined || fields + 10 > message.length) return undefined;
    const length = message.readUInt16BE(fields + 8);
    at = fields + 10 + length;
    if (at > message.length) return undefined;
    if (message.readUInt16BE(fields) === RECORD_TYPE.A && length === 4)
      addresses.push([...message.subarray(fields + 10, at)].join("."));
  }
  return { code: flags & 15, isTruncated: (flags & FLAG.truncated) !== 0, addresses };
}

/** Where what follows a name begins; a pointer ends one. */
function skipName(message: Buffer, at: number): number | undefined {
  let next = at;
  for (;;) {
    const length = message[next];
    if (length === undefined) return undefined;
    if (length >= 0xc0) return next + 2;
    if (length > 63) return undefined;
    next += 1 + length;
    if (length === 0) return next;
  }
}
