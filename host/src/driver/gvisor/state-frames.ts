/**
 * How the runtime's state is written: a sequence of frames, a length of four bytes and as many bytes. A number is a varint,
 * each byte of which is a frame, a signed one zigzag; a string is its length and one frame. What each structure is called, and
 * its fields, stands in a table before the objects, which name it by its place there, from 1.
 * (pkg/compressio without compression, and pkg/state/wire, of gVisor 20240729.)
 */

const FRAME_BYTES = 5;
const MAX_VARINT_FRAMES = 10;

/** What the runtime's format puts before a value of the kind; one that is zero is only that, whatever its kind. */
export const TAG = {
  int: 1,
  uint: 2,
  zero: 5,
  ref: 6,
  struct: 11,
  fields: 13,
  interface: 14,
  type: 17,
} as const;

/** How an interface says of which type its value is. */
export const TYPE_SPEC = { id: 0, pointer: 1 } as const;

/** A number read from the state, and where its frames begin and end. */
export interface NumberAt {
  value: bigint;
  start: number;
  end: number;
}

/** Bytes to put over those at a position. */
export interface Edit {
  position: number;
  bytes: Buffer;
}

/** What structures there are. */
export interface TypeTable {
  /** The place in the table, from 1, of each `name(field, field)`. */
  types: ReadonlyMap<string, number>;
  /** Where the objects begin. */
  end: number;
}

/** Single bytes, each in a frame of its own. */
export function frames(...bytes: number[]): Buffer {
  return Buffer.from(bytes.flatMap((byte) => [0, 0, 0, 1, byte]));
}

/** An unsigned number; where it must fill `bytes` bytes it is written longer than it need be, which readers take. */
export function uint(value: bigint | number, bytes = 1): Buffer {
  const encoded: number[] = [];
  let rest = BigInt(value);
  for (; rest >= 0x80n || encoded.length + 1 < bytes; rest >>= 7n) encoded.push(Number(rest & 0x7fn) | 0x80);
  return frames(...encoded, Number(rest));
}

/** A signed number of 64 bits, see {@link uint}. */
export function int(value: bigint, bytes = 1): Buffer {
  return uint(BigInt.asUintN(64, (value << 1n) ^ (value >> 63n)), bytes);
}

/** The number of bytes that a number's frames hold. */
export function byteCount({ start, end }: { start: number; end: number }): number {
  return (end - start) / FRAME_BYTES;
}

/** Reads on from a position; what is not as expected makes all that follows undefined. */
export class StateReader {
  readonly #state: Buffer;
  #at: number | undefined;

  constructor(state: Buffer, at: number) {
    this.#state = state;
    this.#at = at;
  }

  /** Goes on after these bytes. */
  past(bytes: Buffer): this {
    this.#at = this.#at !== undefined && this.is(bytes) ? this.#at + bytes.length : undefined;
    return this;
  }

  /** Whether these bytes come next. */
  is(bytes: Buffer): boolean {
    return this.#at !== undefined && this.#state.subarray(this.#at, this.#at + bytes.length).equals(bytes);
  }

  /** An unsigned number. */
  uint(): NumberAt | undefined {
    const number = this.#at === undefined ? undefined : uintAt(this.#state, this.#at);
    this.#at = number?.end;
    return number;
  }

  /** A signed number. */
  int(): NumberAt | undefined {
    const number = this.uint();
    return number && { ...number, value: BigInt.asIntN(64, (number.value >> 1n) ^ -(number.value & 1n)) };
  }
}

/** Where each of the places ends at which these bytes stand. */
export function* positions(state: Buffer, bytes: Buffer, from: number): Iterable<number> {
  for (let at = state.indexOf(bytes, from); at !== -1; at = state.indexOf(bytes, at + 1))
    yield at + bytes.length;
}

function uintAt(state: Buffer, start: number): NumberAt | undefined {
  let value = 0n;
  for (let index = 0; index < MAX_VARINT_FRAMES; index += 1) {
    const byte = byteAt(state, start + index * FRAME_BYTES);
    if (byte === undefined) return undefined;
    value |= BigInt(byte & 0x7f) << BigInt(7 * index);
    if (byte < 0x80) return { value, start, end: start + (index + 1) * FRAME_BYTES };
  }
  return undefined;
}

/**
 * The table of types in which a structure of this name is.
 *
 * @param name of the structure that is looked for
 * @returns undefined when there is no such table
 */
export function typeTable(state: Buffer, name: string): TypeTable | undefined {
  const named = state.indexOf(name, 0, "latin1");
  // Before a table is a number whose highest bit is set, and so is ten bytes long.
  const beginning = frames(1, TAG.type);
  for (
    let at = state.indexOf(beginning);
    at !== -1 && at < named;
    at = state.indexOf(beginning, at + FRAME_BYTES)
  ) {
    const header = uintAt(state, at - (MAX_VARINT_FRAMES - 1) * FRAME_BYTES);
    if (header?.end !== at + FRAME_BYTES) continue;
    const table = tableAt(state, header.end);
    if (table !== undefined && table.end > named) return table;
  }
  return undefined;
}

function tableAt(state: Buffer, start: number): TypeTable | undefined {
  const types = new Map<string, number>();
  let at = start;
  for (let id = 1; byteAt(state, at) === TAG.type; id += 1) {
    const name = textAt(state, at + FRAME_BYTES);
    const count = name && uintAt(state, name.end);
    if (name === undefined || count === undefined) return undefined;
    at = count.end;
    const fields: string[] = [];
    while (fields.length < count.value) {
      const field = textAt(state, at);
      if (field === undefined) return undefined;
      fields.push(field.text);
      at = field.end;
    }
    types.set(`${name.text}(${fields.join(", ")})`, id);
  }
  return { types, end: at };
}

function textAt(state: Buffer, start: number): { text: string; end: number } | undefined {
  const length = uintAt(state, start);
  if (length === undefined || length.value === 0n || length.end + 4 > state.length) return undefined;
  const end = length.end + 4 + Number(length.value);
  if (end > state.length || BigInt(state.readUInt32BE(length.end)) !== length.value) return undefined;
  return { text: state.toString("latin1", length.end + 4, end), end };
}

/** The byte in the frame of one byte that begins there. */
function byteAt(state: Buffer, at: number): number | undefined {
  if (at < 0 || at + FRAME_BYTES > state.length || state.readUInt32BE(at) !== 1) return undefined;
  return state[at + FRAME_BYTES - 1];
}
