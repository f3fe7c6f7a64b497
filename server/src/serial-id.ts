import { randomText } from "@torpor/protocol";

/** Unlike that of any other process, past or present: 80 random bits. */
const PROCESS_PART = randomText(16);
let count = 0;

/**
 * A new id, unique but not secret: a prefix, the process and a number. A fresh random one would cost a system call, and
 * every request takes one or two.
 */
export function serialId(prefix: string): string {
  count += 1;
  return `${prefix}${PROCESS_PART}${count.toString(36)}`;
}
