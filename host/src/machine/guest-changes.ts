import { createReadStream, createWriteStream } from "node:fs";
import { stat } from "node:fs/promises";
import { type IncomingMessage, request } from "node:http";
import { Transform } from "node:stream";
import { pipeline } from "node:stream/promises";
import { CodedError, GUEST_PORT } from "@torpor/protocol";
import { z } from "zod";
import type { GuestClient } from "./guest-client.ts";

/** Longer than the agent takes at most to read all files, 5 minutes. */
const SAVE_TIMEOUT_MS = 330_000;
const LOAD_TIMEOUT_MS = 600_000;
const MAX_ANSWER_BYTES = 64 * 1024;
/** Free disk is looked at anew after so much was written. */
const ROOM_EVERY_BYTES = 16 * 1024 * 1024;

const loadedSchema = z.object({
  entries: z.number(),
  removed: z.number(),
  /** Attributes, times and devices that the runtime would not make, and the first reason. */
  skipped: z.number(),
  reason: z.string().optional(),
});
export type LoadedChanges = z.infer<typeof loadedSchema>;

/**
 * Writes what a frozen guest has changed since its template to the file `path`, not yet durable. Its processes are stopped
 * for that, and go on with its next init.
 *
 * @param options.newestUnix nothing in the template is newer, Unix seconds
 * @param options.maxBytes most that its files can be
 * @param options.checkRoom throws when the host's disk is to take no more
 * @throws CodedError `guest_unavailable` when not all of it could be read, `no_space`
 */
export async function saveChanges(
  guest: GuestClient,
  path: string,
  options: {
    hostKey: string;
    newestUnix: number;
    maxBytes: number;
    checkRoom: () => void;
    signal: AbortSignal;
  },
): Promise<void> {
  const { hostKey, newestUnix, maxBytes, checkRoom } = options;
  const signal = AbortSignal.any([options.signal, AbortSignal.timeout(SAVE_TIMEOUT_MS)]);
  const failed = (why: string): CodedError =>
    new CodedError(
      "guest_unavailable",
      `the files of the sandbox at ${guest.address} could not be read, so it goes on running: ${why}`,
    );
  let bytes = 0;
  let checked = 0;
  const bounded = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      bytes += chunk.length;
      try {
        if (bytes > maxBytes) throw failed(`they are more than the ${maxBytes} bytes that its disk can hold`);
        if (bytes - checked > ROOM_EVERY_BYTES) {
          checkRoom();
          checked = bytes;
        }
        done(null, chunk);
      } catch (error) {
        done(error as Error);
      }
    },
  });
  let incoming: IncomingMessage;
  try {
    incoming = await ask(
      guest,
      { method: "GET", path: `/torpor/changes?since=${newestUnix}`, signal },
      { "x-torpor-host-key": hostKey },
    );
    if (incoming.statusCode !== 200) throw failed(`HTTP ${incoming.statusCode} ${await textOf(incoming)}`);
    await pipeline(incoming, bounded, createWriteStream(path, { mode: 0o600 }), { signal });
  } catch (error) {
    if (error instanceof CodedError || options.signal.aborted) throw error;
    if ((error as NodeJS.ErrnoException).code === "ENOSPC")
      throw new CodedError(
        "no_space",
        "the host's disk is full: an image of the sandbox's files does not fit",
        {
          cause: error,
        },
      );
    throw failed(String(error));
  }
  // Only this says that the stream is whole.
  if (incoming.trailers["x-torpor-packed"] === undefined)
    throw failed((incoming.trailers["x-torpor-failed"] ?? "it broke off").slice(0, 2000));
}

/**
 * Gives a guest that has just booted, and is nobody's yet, the changes in the file `path`.
 *
 * @param options.hostKey what its prepare and its init must name from then on
 * @throws CodedError `guest_unavailable` saying what could not be made; the machine is of no use then
 */
export async function loadChanges(
  guest: GuestClient,
  path: string,
  options: { hostKey: string; signal: AbortSignal },
): Promise<LoadedChanges> {
  const signal = AbortSignal.any([options.signal, AbortSignal.timeout(LOAD_TIMEOUT_MS)]);
  const { size } = await stat(path);
  const incoming = await ask(
    guest,
    { method: "PUT", path: "/torpor/changes", signal },
    {
      "content-type": "application/octet-stream",
      "content-length": String(size),
      "x-torpor-host-key": options.hostKey,
    },
    path,
  );
  const text = await textOf(incoming);
  const loaded = incoming.statusCode === 200 ? loadedSchema.safeParse(JSON.parse(text)) : undefined;
  if (loaded?.success !== true)
    throw new CodedError(
      "guest_unavailable",
      `the guest at ${guest.address} could not be given its files (HTTP ${incoming.statusCode}): ${text.slice(0, 2000)}`,
    );
  return loaded.data;
}

/** @param bodyPath a file to send */
async function ask(
  guest: GuestClient,
  { method, path, signal }: { method: string; path: string; signal: AbortSignal },
  headers: Record<string, string>,
  bodyPath?: string,
): Promise<IncomingMessage> {
  const outgoing = request({
    host: guest.address,
    port: GUEST_PORT,
    method,
    path,
    agent: guest.agent,
    signal,
    headers,
  });
  const answered = new Promise<IncomingMessage>((resolve, reject) => {
    outgoing.once("response", resolve);
    outgoing.on("error", reject);
  });
  if (bodyPath === undefined) outgoing.end();
  // An answer that comes before the whole body says why; the broken pipe says nothing.
  else void pipeline(createReadStream(bodyPath), outgoing).catch(() => outgoing.destroy());
  return await answered;
}

async function textOf(incoming: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of incoming as AsyncIterable<Buffer>) {
    if ((bytes += chunk.length) > MAX_ANSWER_BYTES) break;
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString("utf8");
}
