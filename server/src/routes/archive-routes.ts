import type { OutgoingHttpHeaders } from "node:http";
import { PassThrough, type Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { createGunzip, createGzip } from "node:zlib";
import { CodedError, guestPathSchema } from "@torpor/protocol";
import { z } from "zod";
import { readAll } from "../host/read-all.ts";
import { userName } from "./file-content-routes.ts";
import { fileWork, guestFor } from "./file-work.ts";
import { SENT } from "../http/api.ts";
import { guardAgainstStall } from "../http/stall-guard.ts";
import type { RouteDeps } from "./route-deps.ts";

const format = z.enum(["tar", "tar.gz"]).optional().describe("Default `tar`.");
const getQuery = z.strictObject({ path: guestPathSchema, format });
const putQuery = z.strictObject({ path: guestPathSchema, format, user: userName });

const MAX_ANSWER_BYTES = 64 * 1024;
const writtenSchema = z.object({ entries: z.number().int(), bytes: z.number().int() });

/** Whole folders in and out as tar, streamed. */
export function addArchiveRoutes(deps: RouteDeps): void {
  const { api } = deps;
  api.add(
    {
      method: "get",
      path: "/v1/sandboxes/{id}/fs/archive",
      tag: "files",
      summary: "Read a file or folder as a tar archive",
      scope: "sandbox:read",
      query: getQuery,
      answers: { 200: { description: "The archive", mediaType: "application/x-tar" } },
    },
    async (call) => {
      const { guest } = await guestFor(deps, call);
      const { path } = call.query;
      const compressed = call.query.format === "tar.gz";
      const answer = await fileWork(
        `archive ${path}`,
        guest.http("GET", `/torpor/archive?${new URLSearchParams({ path, username: "user" }).toString()}`, {
          signal: call.signal,
          repeatable: true,
        }),
      );
      call.outgoing.writeHead(200, {
        "content-type": compressed ? "application/gzip" : "application/x-tar",
        "x-content-type-options": "nosniff",
      });
      if (call.incoming.method === "HEAD") {
        answer.destroy();
        call.outgoing.end();
      } else if (compressed) await pipeline(answer, createGzip({ level: 1 }), call.outgoing);
      else await pipeline(answer, call.outgoing);
      return SENT;
    },
  );

  api.add(
    {
      method: "put",
      path: "/v1/sandboxes/{id}/fs/archive",
      tag: "files",
      summary: "Unpack a tar archive into a folder",
      description:
        "The folder is made when missing. Entries that would land outside it are refused. When it fails half-way, what was written stays and the error says so.",
      scope: "sandbox:write",
      query: putQuery,
      rawBody: "application/x-tar",
      answers: { 200: { description: "What was written", schema: writtenSchema.partial() } },
    },
    async (call) => {
      const { guest } = await guestFor(deps, call);
      const { path, user = "user" } = call.query;
      const headers: OutgoingHttpHeaders = { "content-type": "application/x-tar" };
      guardAgainstStall(call.incoming);
      const isCompressed = call.query.format === "tar.gz";
      if (!isCompressed && call.incoming.headers["content-length"] !== undefined)
        headers["content-length"] = call.incoming.headers["content-length"];
      const body = isCompressed ? gunzipped(call.incoming) : call.incoming;
      const answer = await fileWork(
        `unpack the archive into ${path}`,
        guest.http("PUT", `/torpor/archive?${new URLSearchParams({ path, username: user }).toString()}`, {
          headers,
          body,
          headTimeoutMs: 0,
          signal: call.signal,
        }),
        call.query.user,
      );
      const written = writtenSchema
        .partial()
        .safeParse(JSON.parse((await readAll(answer, MAX_ANSWER_BYTES)).toString("utf8")));
      return { status: 200, body: written.data ?? {} };
    },
  );
}

/** The decompressed stream; broken gzip ends it with a refusal that names the cause. */
function gunzipped(compressed: Readable): Readable {
  const gunzip = createGunzip();
  const plain = new PassThrough();
  compressed.once("error", (error) => plain.destroy(error));
  compressed.once("close", () => {
    if (!compressed.readableEnded)
      plain.destroy(new Error("the client left before it had sent the whole archive"));
  });
  gunzip.once("error", (error) => {
    compressed.unpipe(gunzip);
    plain.destroy(
      new CodedError(
        "invalid_request",
        `the body is not gzip (${error.message}); send gzip, or leave format=tar.gz out for a plain tar`,
      ),
    );
  });
  compressed.pipe(gunzip).pipe(plain);
  plain.once("close", () => gunzip.destroy());
  return plain;
}
