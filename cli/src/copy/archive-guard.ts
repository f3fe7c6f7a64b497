import { CodedError } from "@torpor/protocol";

/** Tar works in blocks of 512 bytes: a header, then the content padded to whole blocks. */
const BLOCK_BYTES = 512;

/** Largest extended header (long names, attributes) that is read, bytes. */
const MAX_EXTENDED_BYTES = 1024 * 1024;

/** Files, hard and symbolic links, directories; the rest are devices, fifos and things nobody sends. */
const ALLOWED_TYPES = new Set(["0", "\0", "1", "2", "5", "7"]);

/**
 * Passes a tar archive on unchanged while it checks every header: only files, links and directories, no absolute
 * name, none with `..`.
 *
 * @throws CodedError `invalid_path` at the first entry that is none of these, or when the archive is cut off.
 */
export async function* guardArchive(archive: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  let pending = Buffer.alloc(0);
  let skipBytes = 0;
  let extended: { type: string; sizeBytes: number } | undefined;
  let override: { path?: string; link?: string; sizeBytes?: number } = {};
  let sawEnd = false;
  for await (const chunk of archive) {
    pending = pending.length === 0 ? Buffer.from(chunk) : Buffer.concat([pending, chunk]);
    let offset = 0;
    while (offset < pending.length) {
      if (skipBytes > 0) {
        const step = Math.min(skipBytes, pending.length - offset);
        skipBytes -= step;
        offset += step;
        continue;
      }
      if (extended !== undefined) {
        const padded = padToBlock(extended.sizeBytes);
        if (pending.length - offset < padded) break;
        const body = pending.subarray(offset, offset + extended.sizeBytes);
        override = { ...override, ...readExtended(extended.type, body) };
        extended = undefined;
        offset += padded;
        continue;
      }
      if (pending.length - offset < BLOCK_BYTES) break;
      const header = pending.subarray(offset, offset + BLOCK_BYTES);
      offset += BLOCK_BYTES;
      if (sawEnd || header.every((byte) => byte === 0)) {
        sawEnd = true;
        continue;
      }
      const type = String.fromCharCode(header[156] ?? 0);
      const sizeBytes = readSize(header.subarray(124, 136));
      if ("xLK".includes(type)) {
        if (sizeBytes > MAX_EXTENDED_BYTES) throw refused("an extended header", `of ${sizeBytes} bytes`);
        extended = { type, sizeBytes };
        continue;
      }
      if (type === "g") {
        skipBytes = padToBlock(sizeBytes);
        continue;
      }
      checkEntry(
        type,
        override.path ?? entryName(header),
        type === "1" ? (override.link ?? text(header, 157, 100)) : undefined,
      );
      // Links and directories have no content, whatever their size field says.
      skipBytes =
        type === "0" || type === "\0" || type === "7" ? padToBlock(override.sizeBytes ?? sizeBytes) : 0;
      override = {};
    }
    // Pass on what was looked at, and only that.
    if (offset > 0) yield pending.subarray(0, offset);
    pending = Buffer.from(pending.subarray(offset));
  }
  if (pending.length > 0 || skipBytes > 0 || extended !== undefined || !sawEnd) {
    throw new CodedError(
      "internal",
      "the archive from the sandbox was cut off: what was unpacked is incomplete",
    );
  }
}

function checkEntry(type: string, name: string, hardLink: string | undefined): void {
  if (!ALLOWED_TYPES.has(type)) throw refused(name, "is a device, fifo or of an unknown kind");
  for (const path of hardLink === undefined ? [name] : [name, hardLink]) {
    if (path.startsWith("/")) throw refused(name, "has an absolute name");
    if (path.split("/").includes("..")) throw refused(name, "leads out of the directory");
  }
}

function refused(name: string, why: string): CodedError {
  return new CodedError(
    "invalid_path",
    `the archive from the sandbox was refused: ${JSON.stringify(name)} ${why}`,
  );
}

function padToBlock(bytes: number): number {
  return Math.ceil(bytes / BLOCK_BYTES) * BLOCK_BYTES;
}

function text(block: Buffer, start: number, length: number): string {
  const field = block.subarray(start, start + length);
  const end = field.indexOf(0);
  return field.toString("utf8", 0, end === -1 ? length : end);
}

function entryName(header: Buffer): string {
  const prefix = text(header, 257, 5) === "ustar" ? text(header, 345, 155) : "";
  return prefix === "" ? text(header, 0, 100) : `${prefix}/${text(header, 0, 100)}`;
}

/** Octal digits, or base 256 when the first bit is set (files of 8 GiB and more). */
function readSize(field: Buffer): number {
  const size =
    ((field[0] ?? 0) & 0x80) === 0
      ? Number.parseInt(field.toString("latin1").replace(/[\0 ]/g, "") || "0", 8)
      : Number(BigInt(`0x${field.subarray(1).toString("hex")}`));
  if (!Number.isSafeInteger(size) || size < 0) throw refused("an entry", "has no sensible size");
  return size;
}

/** GNU long names (`L`, `K`) and pax records (`x`: `<length> <key>=<value>\n`). */
function readExtended(type: string, body: Buffer): { path?: string; link?: string; sizeBytes?: number } {
  if (type === "L") return { path: text(body, 0, body.length) };
  if (type === "K") return { link: text(body, 0, body.length) };
  const found: { path?: string; link?: string; sizeBytes?: number } = {};
  let offset = 0;
  while (offset < body.length) {
    const space = body.indexOf(0x20, offset);
    const length = Number(body.toString("latin1", offset, space === -1 ? offset : space));
    if (!Number.isInteger(length) || length < 5 || offset + length > body.length)
      throw refused("an extended header", "cannot be read");
    const record = body.toString("utf8", space + 1, offset + length - 1);
    const equals = record.indexOf("=");
    const key = record.slice(0, equals);
    const value = record.slice(equals + 1);
    if (key === "path") found.path = value;
    if (key === "linkpath") found.link = value;
    if (key === "size") found.sizeBytes = Number(value);
    offset += length;
  }
  return found;
}
