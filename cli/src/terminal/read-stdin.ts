import { LIMITS } from "@torpor/protocol";
import { UsageError } from "../failure.ts";

/** All of standard input as text, for a command that gets it in one piece. @throws UsageError when too much or not UTF-8 */
export async function readStdin(stdin: AsyncIterable<Uint8Array | string>): Promise<string> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of stdin) {
    const buffer = Buffer.from(chunk);
    bytes += buffer.length;
    if (bytes > LIMITS.maxCommandBytes) {
      throw new UsageError(
        `standard input is larger than ${LIMITS.maxCommandBytes} bytes: copy it in as a file (torpor cp - ID:/workspace/input) and let the command read that`,
      );
    }
    chunks.push(buffer);
  }
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Buffer.concat(chunks));
  } catch {
    throw new UsageError(
      "standard input is not UTF-8 text: copy it in as a file (torpor cp - ID:/workspace/input) and let the command read that",
    );
  }
}
