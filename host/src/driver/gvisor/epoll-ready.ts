import {
  byteCount,
  type Edit,
  frames,
  positions,
  StateReader,
  TAG,
  type TypeTable,
  uint,
} from "./state-frames.ts";

/**
 * An epoll instance keeps its ready descriptors in a list, and each descriptor keeps whether it is on it. While the runtime
 * writes its state some may become ready: it cuts the connections that lead outside as it comes to them. What is written then
 * disagrees with itself, a descriptor on the list that says it is not. On a restore the runtime puts every descriptor on the
 * list that says so, to look at each anew; one that is there already tears the list, and those behind the tear are not
 * looked at ever again: a server that waited in epoll for a client never hears of one. So the list is emptied in the image,
 * and every descriptor says that it is not on it: all are then put on it, and looked at.
 * (pkg/sentry/vfs/epoll.go and save_restore.go of gVisor.)
 */

/** The structures as they must be described: only a runtime that has these very fields is known to. */
const KNOWN = {
  interest:
    "pkg/sentry/vfs.epollInterest(epoll, key, waiter, mask, ready, epollInterestEntry, readySeq, userData)",
  /** What chains a descriptor into the list; comes right after whether it is on it. */
  entry: "pkg/sentry/vfs.epollInterestEntry(next, prev)",
  list: "pkg/sentry/vfs.epollInterestList(head, tail)",
} as const;

const TRUE = frames(1);
const FALSE = frames(0);

/** What empties all lists of ready descriptors. Nothing when nobody has an epoll instance or the runtime is not known. */
export function* emptiedReadyLists(state: Buffer, { types, end }: TypeTable): Iterable<Edit> {
  const entry = types.get(KNOWN.entry);
  const list = types.get(KNOWN.list);
  if (entry === undefined || list === undefined || !types.has(KNOWN.interest)) return;
  const both = (type: number): Buffer =>
    Buffer.concat([frames(TAG.struct), uint(type), frames(TAG.fields, 2)]);
  for (const start of positions(state, both(list), end)) {
    const read = new StateReader(state, start);
    // A reference to no object is a null pointer; an empty list has no references.
    for (const reference of [read.past(frames(TAG.ref)).uint(), read.past(frames(0, TAG.ref)).uint()])
      if (reference !== undefined) yield { position: reference.start, bytes: uint(0, byteCount(reference)) };
  }
  const entryIs = both(entry);
  for (const start of positions(state, entryIs, end)) {
    // One that is not on the list has a zero here.
    const ready = start - entryIs.length - TRUE.length;
    if (state.subarray(ready, ready + TRUE.length).equals(TRUE)) yield { position: ready, bytes: FALSE };
  }
}
