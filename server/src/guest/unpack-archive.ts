import type { Readable } from "node:stream";
import { readAll } from "../host/read-all.ts";
import type { ExecTarget } from "./exec.ts";
import { GuestClient } from "./guest-client.ts";

const MAX_ANSWER_BYTES = 64 * 1024;

/** Unpacks a tar stream into a folder inside; what is in it belongs to `user`. @throws GuestRefusal, CodedError */
export async function unpackArchive(
  { host, record }: ExecTarget,
  { path, user, tar }: { path: string; user: string; tar: Readable },
  signal: AbortSignal,
): Promise<void> {
  const query = new URLSearchParams({ path, username: user }).toString();
  const answer = await new GuestClient(host.client, record).http("PUT", `/torpor/archive?${query}`, {
    headers: { "content-type": "application/x-tar" },
    body: tar,
    headTimeoutMs: 0,
    signal,
  });
  await readAll(answer, MAX_ANSWER_BYTES);
}
