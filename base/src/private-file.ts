import {
  closeSync,
  constants,
  fchownSync,
  fstatSync,
  fsyncSync,
  openSync,
  readSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { dirname } from "node:path";

/** Of keys and certificates, which are far smaller, bytes. */
const MAX_BYTES = 64 * 1024;

/**
 * The bytes of a regular file of at most 64 KiB that is no symbolic link; undefined when there is none. Never waits, also
 * where somebody else can put a FIFO or a device in its place.
 *
 * @throws Error for one that is no regular file or too large, and what the file system throws
 */
export function readPrivateFile(file: string): Buffer | undefined {
  let descriptor: number;
  try {
    descriptor = openSync(file, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
  try {
    if (!fstatSync(descriptor).isFile())
      throw new Error(`${file} is no regular file, so it is not read; move it away`);
    const bytes = Buffer.alloc(MAX_BYTES + 1);
    let length = 0;
    for (let read = -1; read !== 0 && length < bytes.length; length += read)
      read = readSync(descriptor, bytes, length, bytes.length - length, null);
    if (length > MAX_BYTES)
      throw new Error(`${file} is larger than the ${MAX_BYTES} bytes that a key may be; move it away`);
    return bytes.subarray(0, length);
  } finally {
    closeSync(descriptor);
  }
}

/**
 * Writes a file of mode 0600, whole or not at all, and on the disk when this returns. What another puts beside it meanwhile is
 * neither written nor given away: the file is always one made here.
 *
 * @param owner whose it is. Default: this process's
 * @throws what the file system throws
 */
export function writePrivateFile(
  file: string,
  content: string | Buffer,
  owner?: { uid: number; gid: number },
): void {
  const temporary = `${file}.new`;
  rmSync(temporary, { force: true }); // one that a crash left, or a link
  const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW;
  const descriptor = openSync(temporary, flags, 0o600);
  try {
    writeFileSync(descriptor, content);
    if (owner !== undefined) fchownSync(descriptor, owner.uid, owner.gid); // not by its name, which may be another's by now
    fsyncSync(descriptor);
  } finally {
    closeSync(descriptor);
  }
  renameSync(temporary, file);
  const directory = openSync(dirname(file), constants.O_RDONLY);
  try {
    fsyncSync(directory);
  } finally {
    closeSync(directory);
  }
}
