import { randomInt } from "node:crypto";
import { CodedError } from "@torpor/protocol";

/** Below the ports Linux gives to outgoing connections (32768 and up): no other program comes by one of them by chance. */
const PORT_RANGE = { first: 10_000, end: 32_000 } as const;
const TRIES = 50;

/**
 * Listens on a port that is free.
 *
 * @param preferred tried first. @param listen listens on one port. @returns the port
 * @throws CodedError `internal` when none is found; what `listen` throws for any reason but that the port is taken
 */
export async function listenOnPort(
  preferred: number | undefined,
  listen: (port: number) => Promise<void>,
): Promise<number> {
  for (let tries = 0; tries < TRIES; tries += 1) {
    const port =
      tries === 0 && preferred !== undefined ? preferred : randomInt(PORT_RANGE.first, PORT_RANGE.end);
    try {
      await listen(port);
      return port;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EADDRINUSE") throw error;
    }
  }
  throw new CodedError(
    "internal",
    `no free port found between ${PORT_RANGE.first} and ${PORT_RANGE.end} after ${TRIES} tries; see what listens there with ss -tlnup`,
  );
}
