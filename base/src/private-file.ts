import {
  chownSync,
  closeSync,
  constants,
  fchmodSync,
  fsyncSync,
  openSync,
  readFileSync,
  renameSync,
  writeSync,
} from "node:fs";
import { dirname } from "node:path";

/** The bytes of a file that is no symbolic link; undefined when there is none. @throws what the file system throws */
export function readPrivateFile(file: string): Buffer | undefined {
  let descriptor: number;
  try {
    descriptor = openSync(file, constants.O_RDONLY | constants.O_NOFOLLOW);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
  try {
    return readFileSync(descriptor);
  } finally {
    closeSync(descriptor);
  }
}

/**
 * Writes a file of mode 0600, whole or not at all, and on the disk when this returns.
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
  const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_TRUNC | constants.O_NOFOLLOW;
  const descriptor = openSync(temporary, flags, 0o600);
  try {
    fchmodSync(descriptor, 0o600); // one that a crash left may have another mode
    if (typeof content === "string") writeSync(descriptor, content);
    else writeSync(descriptor, content);
    fsyncSync(descriptor);
  } finally {
    closeSync(descriptor);
  }
  if (owner !== undefined) chownSync(temporary, owner.uid, owner.gid);
  renameSync(temporary, file);
  const directory = openSync(dirname(file), constants.O_RDONLY);
  try {
    fsyncSync(directory);
  } finally {
    closeSync(directory);
  }
}
