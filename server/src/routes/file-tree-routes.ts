import { CodedError, type FileChange, fileEntrySchema, guestPathSchema, moveSchema } from "@torpor/protocol";
import { z } from "zod";
import { type GuestEntry, toFileEntry } from "../guest/file-entry.ts";
import { unbrokenWatch } from "../guest/unbroken-watch.ts";
import { NdjsonWriter } from "../http/ndjson.ts";
import { GuestRefusal } from "../host/answer-error.ts";
import { stat } from "./file-content-routes.ts";
import { fileWork, guestFor } from "./file-work.ts";
import { SENT } from "../http/api.ts";
import type { RouteDeps } from "./route-deps.ts";

const MAX_DEPTH = 64;

const pathQuery = z.strictObject({ path: guestPathSchema });
const listQuery = z.strictObject({
  path: guestPathSchema,
  depth: z.coerce
    .number({ error: "must be a whole number" })
    .int("must be a whole number")
    .min(1)
    .max(MAX_DEPTH)
    .optional()
    .describe("Levels below the folder. Default 1."),
});
const watchQuery = z.strictObject({
  path: guestPathSchema,
  recursive: z.enum(["true", "false", "1", "0"]).optional(),
});

const CHANGES: Readonly<Record<string, FileChange["type"]>> = {
  EVENT_TYPE_CREATE: "create",
  EVENT_TYPE_WRITE: "write",
  EVENT_TYPE_REMOVE: "remove",
  EVENT_TYPE_RENAME: "rename",
  EVENT_TYPE_CHMOD: "chmod",
};

/** Look at, make, move and watch files and folders. */
export function addFileTreeRoutes(deps: RouteDeps): void {
  const { api } = deps;
  api.add(
    {
      method: "get",
      path: "/v1/sandboxes/{id}/fs/stat",
      tag: "files",
      summary: "Look at one file or folder",
      scope: "sandbox:read",
      query: pathQuery,
      answers: { 200: { description: "The entry", schema: fileEntrySchema } },
    },
    async (call) => {
      const { guest } = await guestFor(deps, call);
      return { status: 200, body: await stat(guest, call.query.path, call.signal) };
    },
  );

  api.add(
    {
      method: "get",
      path: "/v1/sandboxes/{id}/fs/dir",
      tag: "files",
      summary: "List a folder",
      scope: "sandbox:read",
      query: listQuery,
      answers: {
        200: {
          description: "Its entries, depth first",
          schema: z.object({ entries: z.array(fileEntrySchema) }),
        },
      },
    },
    async (call) => {
      const { guest } = await guestFor(deps, call);
      const { path, depth = 1 } = call.query;
      const { entries = [] } = await fileWork(
        `list ${path}`,
        guest.unary<{ entries?: GuestEntry[] }>(
          "filesystem.Filesystem/ListDir",
          { path, depth },
          call.signal,
        ),
      );
      return { status: 200, body: { entries: entries.map(toFileEntry) } };
    },
  );

  api.add(
    {
      method: "post",
      path: "/v1/sandboxes/{id}/fs/dir",
      tag: "files",
      summary: "Make a folder and those above it",
      description: "A folder that exists already is as good as made.",
      scope: "sandbox:write",
      query: pathQuery,
      body: z.strictObject({}),
      answers: { 200: { description: "The folder", schema: fileEntrySchema } },
    },
    async (call) =>
      await api.once(
        call,
        async () => {
          const { guest } = await guestFor(deps, call);
          const { path } = call.query;
          try {
            await fileWork(
              `make the folder ${path}`,
              guest.unary("filesystem.Filesystem/MakeDir", { path }, call.signal),
            );
          } catch (error) {
            if (
              !(
                error instanceof CodedError &&
                error.cause instanceof GuestRefusal &&
                error.code === "already_exists"
              )
            )
              throw error;
          }
          return { status: 200, body: await stat(guest, path, call.signal) };
        },
        true, // making it again does nothing
      ),
  );

  api.add(
    {
      method: "post",
      path: "/v1/sandboxes/{id}/fs/move",
      tag: "files",
      summary: "Move or rename a file or folder",
      description: "Missing folders above the destination are made; a file there is replaced.",
      scope: "sandbox:write",
      body: moveSchema,
      answers: { 200: { description: "The entry at its new place", schema: fileEntrySchema } },
    },
    async (call) =>
      await api.once(
        call,
        async () => {
          const { guest } = await guestFor(deps, call);
          const { source, destination } = call.body;
          const moved = await fileWork(
            `move ${source} to ${destination}`,
            guest.unary<{ entry: GuestEntry }>(
              "filesystem.Filesystem/Move",
              { source, destination },
              call.signal,
            ),
          );
          return { status: 200, body: toFileEntry(moved.entry) };
        },
        false,
      ),
  );

  api.add(
    {
      method: "get",
      path: "/v1/sandboxes/{id}/fs/watch",
      tag: "files",
      summary: "Watch a folder",
      description:
        'NDJSON, one change a line: `{type, name}` with type create, write, remove, rename, chmod or missed (a snapshot or a fork came between: look at the folder anew), or `{type: "keepalive"}`. Changes count from the moment the answer\'s head is sent.',
      scope: "sandbox:read",
      query: watchQuery,
      answers: {
        200: {
          description: "Changes as they happen, until the client leaves",
          mediaType: "application/x-ndjson",
        },
      },
    },
    async (call) => {
      const { guest, record } = await guestFor(deps, call);
      const { path, recursive } = call.query;
      if (call.incoming.method === "HEAD") {
        await stat(guest, path, call.signal);
        new NdjsonWriter(call.outgoing, call.signal).end();
        return SENT;
      }
      const folder = { path, recursive: recursive === "true" || recursive === "1" };
      const events = unbrokenWatch(guest, folder, call.signal);
      let writer: NdjsonWriter | undefined;
      try {
        for (;;) {
          const { value, done } = await fileWork(`watch ${path}`, events.next());
          if (done === true) break;
          writer ??= new NdjsonWriter(call.outgoing, call.signal);
          deps.activity.note(record);
          const type = CHANGES[value.filesystem?.type ?? ""];
          if (value.filesystem !== undefined && type !== undefined)
            await writer.write({ type, name: value.filesystem.name } satisfies FileChange);
          else if (value.missed !== undefined)
            await writer.write({ type: "missed", name: "." } satisfies FileChange);
          else if (value.keepalive !== undefined) await writer.write({ type: "keepalive" });
        }
      } catch (error) {
        if (writer === undefined) throw error;
        call.outgoing.destroy(); // the end of the stream must not look like the end of the changes
        return SENT;
      } finally {
        await events.return(undefined);
      }
      call.outgoing.destroy();
      return SENT;
    },
  );
}
