import type { IncomingMessage } from "node:http";

/** An upload that brings nothing for this long is given up, milliseconds. */
const UPLOAD_STALL_MS = 120_000;

/** Ends an upload whose client has gone quiet, so that it does not hold a file in the sandbox open for ever. */
export function guardAgainstStall(incoming: IncomingMessage): void {
  const { socket } = incoming;
  const giveUp = (): void => {
    socket.destroy();
  };
  socket.setTimeout(UPLOAD_STALL_MS);
  socket.on("timeout", giveUp);
  // The connection serves others afterwards, which may be silent for longer. The answer may take its time as well.
  incoming.once("end", () => {
    socket.setTimeout(0);
    socket.off("timeout", giveUp);
  });
}
