import type { OutgoingHttpHeaders } from "node:http";
import { pipeline } from "node:stream/promises";
import { CodedError, fileEntrySchema, guestPathSchema } from "@torpor/protocol";
import { z } from "zod";
import { type GuestEntry, toFileEntry } from "../guest/file-entry.ts";
import type { GuestClient } from "../guest/guest-client.ts";
import { readAll } from "../host/read-all.ts";
import { fileWork, guestFor } from "./file-work.ts";
import { SENT } from "../http/api.ts";
import { guardAgainstStall } from "../http/stall-guard.ts";
import type { RouteDeps } from "./route-deps.ts";

/** Headers of the guest's answer that describe the bytes. Its content type is not passed on: a file is bytes here. */
const PASSED_HEADERS = ["content-length", "content-range", "accept-ranges", "last-modified", "etag"] as const;

/** The answer of an upload is one short entry, bytes. */
const MAX_UPLOAD_ANSWER_BYTES = 64 * 1024;

export const userName = z
  .string()
  .regex(/^[a-z_][a-z0-9_-]{0,31}$/, "must be a user name")
  .optional()
  .describe("Whose home `~` is and who owns what is made. Default `user`.");

const pathQuery = z.strictObject({ path: guestPathSchema });
const putQuery = z.strictObject({
  path: guestPathSchema,
  mode: z
    .string()
    .regex(/^0?[0-7]{3,4}$/, "must be octal permission bits, e.g. 0644")
    .optional()
    .describe("Octal permission bits, e.g. 0644. Default: those of the file replaced, else 0644."),
  user: userName,
});

/** Read, write and remove files. Bodies are streamed both ways and never held. */
export function addFileContentRoutes(deps: RouteDeps): void {
  const { api } = deps;
  api.add(
    {
      method: "get",
      path: "/v1/sandboxes/{id}/fs",
      tag: "files",
      summary: "Read a file",
      description:
        "Raw bytes, streamed; `Range` is honoured (206, 416). Files of /proc are read to their end.",
      scope: "sandbox:read",
      query: pathQuery,
      answers: {
        200: { description: "The bytes", mediaType: "application/octet-stream" },
        206: { description: "The range asked for", mediaType: "application/octet-stream" },
      },
    },
    async (call) => {
      const { guest } = await guestFor(deps, call);
      const { path } = call.query;
      const headers: OutgoingHttpHeaders = { "accept-encoding": "identity" };
      for (const name of ["range", "if-range", "if-none-match", "if-modified-since"])
        if (call.incoming.headers[name] !== undefined) headers[name] = call.incoming.headers[name];
      const method = call.incoming.method === "HEAD" ? "HEAD" : "GET";
      const answer = await fileWork(
        `read ${path}`,
        guest.http(method, `/files?${new URLSearchParams({ path, username: "user" }).toString()}`, {
          headers,
          signal: call.signal,
          repeatable: true,
        }),
      );
      const answerHeaders: OutgoingHttpHeaders = {
        "content-type": "application/octet-stream",
        // What a sandbox wrote is nobody's page: a browser that is led here must neither guess its type nor run it.
        "x-content-type-options": "nosniff",
        "content-security-policy": "default-src 'none'; sandbox",
      };
      for (const name of PASSED_HEADERS)
        if (answer.headers[name] !== undefined) answerHeaders[name] = answer.headers[name];
      call.outgoing.writeHead(answer.statusCode ?? 200, answerHeaders);
      if (method === "HEAD") {
        answer.resume();
        call.outgoing.end();
        return SENT;
      }
      await pipeline(answer, call.outgoing); // on failure it breaks the connection: the length or last chunk is missing
      return SENT;
    },
  );

  api.add(
    {
      method: "put",
      path: "/v1/sandboxes/{id}/fs",
      tag: "files",
      summary: "Write a file",
      description:
        "The body is the content, streamed. Missing folders are made. The file changes as a whole at the end: an upload that breaks off leaves the old one.",
      scope: "sandbox:write",
      query: putQuery,
      rawBody: "application/octet-stream",
      answers: { 200: { description: "The file written", schema: fileEntrySchema } },
    },
    async (call) => {
      const { guest } = await guestFor(deps, call);
      const { path, mode, user = "user" } = call.query;
      const headers: OutgoingHttpHeaders = { "content-type": "application/octet-stream" };
      for (const name of ["content-length", "content-encoding"] as const)
        if (call.incoming.headers[name] !== undefined) headers[name] = call.incoming.headers[name];
      guardAgainstStall(call.incoming);
      const query = new URLSearchParams({ path, username: user });
      const answer = await fileWork(
        `write ${path}`,
        guest.http("POST", `/files?${query.toString()}`, {
          headers,
          body: call.incoming,
          headTimeoutMs: 0,
          signal: call.signal,
        }),
        call.query.user,
      );
      const [written] = JSON.parse((await readAll(answer, MAX_UPLOAD_ANSWER_BYTES)).toString("utf8")) as {
        path?: string;
      }[];
      const resolved = written?.path ?? path;
      if (mode !== undefined) await setMode(guest, resolved, mode, call.signal);
      return { status: 200, body: await stat(guest, resolved, call.signal) };
    },
  );

  api.add(
    {
      method: "delete",
      path: "/v1/sandboxes/{id}/fs",
      tag: "files",
      summary: "Remove a file, or a folder with all that is in it",
      scope: "sandbox:write",
      query: pathQuery,
      answers: {
        200: { description: "Removed", schema: z.object({ path: z.string(), removed: z.literal(true) }) },
      },
    },
    async (call) => {
      const { guest } = await guestFor(deps, call);
      const { path } = call.query;
      await stat(guest, path, call.signal); // the guest takes a missing path for removed; a caller wants to know
      await fileWork(`remove ${path}`, guest.unary("filesystem.Filesystem/Remove", { path }, call.signal));
      return { status: 200, body: { path, removed: true } };
    },
  );
}

/** One entry. @throws CodedError file_not_found */
export async function stat(
  guest: GuestClient,
  path: string,
  signal: AbortSignal,
): Promise<z.infer<typeof fileEntrySchema>> {
  const { entry } = await fileWork(
    `look at ${path}`,
    guest.unary<{ entry: GuestEntry }>("filesystem.Filesystem/Stat", { path }, signal),
  );
  return toFileEntry(entry);
}

/** The upload protocol carries no mode, so the guest's own `chmod` sets it. */
async function setMode(guest: GuestClient, path: string, mode: string, signal: AbortSignal): Promise<void> {
  const request = {
    process: { cmd: "chmod", args: [mode, "--", path], envs: {} },
    stdin: false,
    torpor: { user: "root", timeoutMs: 10_000, maxOutputBytes: 1024 },
  };
  for await (const event of guest.start(request, { signal })) {
    if (event.end !== undefined && event.end.exitCode !== 0 && event.end.torpor?.exitCode !== 0) {
      throw new CodedError(
        "unsupported",
        `${path} was written, but its mode could not be set to ${mode}: chmod ended with ${event.end.status ?? "a failure"}`,
      );
    }
  }
}
