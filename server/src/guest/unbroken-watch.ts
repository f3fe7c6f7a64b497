import type { GuestClient, WatchEvent } from "./guest-client.ts";

/**
 * The changes in a folder over as many streams as it takes. What happens while one is cut off, by a snapshot or a fork, is
 * told of by nobody: `missed` comes then, so that whoever watches looks for himself.
 */
export async function* unbrokenWatch(
  guest: GuestClient,
  folder: { path: string; recursive: boolean },
  signal: AbortSignal,
): AsyncGenerator<WatchEvent> {
  const interruptions = guest.interruptions(signal);
  let hasBegun = false;
  let cut: { by: unknown } | undefined;
  for (;;) {
    try {
      for await (const event of guest.watch(folder.path, folder.recursive, { signal })) {
        interruptions.passed();
        cut = undefined;
        yield event.start !== undefined && hasBegun ? { missed: {} } : event;
        hasBegun = true;
      }
      throw new Error("the guest ended the watch");
    } catch (error) {
      cut ??= { by: error };
      if (!hasBegun || !(await interruptions.pass(error))) throw cut.by;
    }
  }
}
