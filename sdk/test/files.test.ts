import { createReadStream } from "node:fs";
import { Readable } from "node:stream";
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import {
  ConnectionError,
  InvalidRequestError,
  NoSpaceError,
  NotFoundError,
  type SandboxFiles,
  TimeoutError,
  type UploadContent,
} from "@torpor/sdk";
import {
  type Call,
  closedByClient,
  FakeServer,
  fileEntryWire,
  ndjson,
  SANDBOX_ID,
  sendError,
  sendJson,
} from "./fake-server.ts";

const FS = "/v1/sandboxes/{id}/fs";

/** A server with one sandbox, and a small file system of files at their paths. */
async function withFiles(
  options: { timeoutMs?: number } = {},
): Promise<{ server: FakeServer; files: SandboxFiles; stored: Map<string, Buffer> } & AsyncDisposable> {
  const server = (await FakeServer.start()).withSandbox();
  const stored = new Map<string, Buffer>();
  server.on("PUT", FS, async ({ request, response, query }) => {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const content = Buffer.concat(chunks);
    const path = query.get("path") ?? "";
    stored.set(path, content);
    sendJson(
      response,
      200,
      fileEntryWire({ path, size: content.length, mode: Number.parseInt(query.get("mode") ?? "644", 8) }),
    );
  });
  server.on("GET", FS, ({ request, response, query }) => {
    const content = stored.get(query.get("path") ?? "");
    if (!content) return sendError(response, 404, "file_not_found", "no such file");
    const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "");
    if (!range) return void response.writeHead(200, { "content-length": content.length }).end(content);
    const part = content.subarray(Number(range[1]), range[2] ? Number(range[2]) + 1 : undefined);
    response.writeHead(206, { "content-length": part.length }).end(part);
  });
  const { files } = await server.client(options).sandboxes.create();
  return { server, files, stored, [Symbol.asyncDispose]: () => server[Symbol.asyncDispose]() };
}

async function* chunks(...parts: (Uint8Array | string)[]): AsyncGenerator<Uint8Array | string> {
  yield* parts;
}

describe("write", () => {
  const bytes = Uint8Array.of(0, 1, 254, 255);
  it.each<[string, () => UploadContent, Buffer]>([
    ["a string", () => "naïve ☃", Buffer.from("naïve ☃")],
    ["an empty string", () => "", Buffer.alloc(0)],
    ["bytes", () => bytes, Buffer.from(bytes)],
    ["a view of bytes", () => new Uint8Array([9, 0, 1, 254, 255, 9]).subarray(1, 5), Buffer.from(bytes)],
    ["a Buffer", () => Buffer.from(bytes), Buffer.from(bytes)],
    ["an ArrayBuffer", () => bytes.slice().buffer, Buffer.from(bytes)],
    ["a Blob", () => new Blob([bytes]), Buffer.from(bytes)],
    ["a ReadableStream", () => new Blob([bytes]).stream(), Buffer.from(bytes)],
    [
      "an async generator, empty chunks among its own",
      () => chunks("☃", "", new Uint8Array(0), bytes),
      Buffer.concat([Buffer.from("☃"), bytes]),
    ],
    ["an empty async generator", () => chunks(), Buffer.alloc(0)],
    ["a Node stream", () => Readable.from([Buffer.from("ab"), Buffer.from("c")]), Buffer.from("abc")],
  ])("takes %s, byte for byte", async (_what, content, expected) => {
    await using test = await withFiles();
    const entry = await test.files.write("/workspace/a ☃&?.txt", content(), { mode: 0o755 });
    expect(test.stored.get("/workspace/a ☃&?.txt")).toEqual(expected);
    expect(entry).toMatchObject({
      sizeBytes: expected.length,
      mode: 0o755,
      modifiedAt: new Date("2026-11-29T16:00:00Z"),
    });
    expect(test.server.callsTo("PUT", "/fs")[0]?.query.get("mode")).toBe("0755");
  });

  it("takes a file of the disk as it is read", async () => {
    await using test = await withFiles();
    const path = fileURLToPath(import.meta.url);
    await test.files.write("/self", createReadStream(path));
    expect(test.stored.get("/self")?.toString()).toContain("takes a file of the disk as it is read");
  });

  it.each<[string, unknown]>([
    ["null", null],
    ["a number", 7],
    ["a plain object", {}],
    ["an array", ["a"]],
  ])("refuses %s before anything is sent", async (_what, content) => {
    await using test = await withFiles();
    await expect(test.files.write("/a", content as UploadContent)).rejects.toBeInstanceOf(
      InvalidRequestError,
    );
    expect(test.server.callsTo("PUT", "/fs")).toHaveLength(0);
  });

  it("refuses a locked stream and a mode that is none", async () => {
    await using test = await withFiles();
    const stream = new Blob(["a"]).stream();
    stream.getReader();
    await expect(test.files.write("/a", stream)).rejects.toThrow("locked");
    await expect(test.files.write("/a", "", { mode: 0.5 })).rejects.toThrow("mode");
  });

  it("rethrows what the source throws, and cuts the upload off", async () => {
    await using test = await withFiles();
    let cut: Promise<void> | undefined;
    const hasBegun = new Promise<void>((resolve) => {
      test.server.on("PUT", FS, (call) => {
        call.request.once("data", () => resolve()).on("error", () => {});
        cut = closedByClient(call);
      });
    });
    const failure = new Error("disk read failed");
    const source = async function* (): AsyncGenerator<Uint8Array> {
      yield new Uint8Array(100_000);
      await hasBegun;
      throw failure;
    };
    await expect(test.files.write("/a", source())).rejects.toBe(failure);
    await cut;
    expect(test.server.callsTo("PUT", "/fs")).toHaveLength(1);
  });

  it("refuses a stream of something else than bytes", async () => {
    await using test = await withFiles();
    const source = Readable.from([{ a: 1 }]);
    await expect(test.files.write("/a", source)).rejects.toThrow("must give bytes");
    expect(source.destroyed).toBe(true);
  });

  it("lets go of the source when the server refuses in the middle, and says why", async () => {
    await using test = await withFiles();
    test.server.on("PUT", FS, (call) => sendError(call.response, 507, "no_space", "the disk is full"));
    let isReleased = false;
    const source = async function* (): AsyncGenerator<Uint8Array> {
      try {
        for (;;) {
          yield new Uint8Array(65_536);
          await new Promise((resolve) => setImmediate(resolve));
        }
      } finally {
        isReleased = true;
      }
    };
    await expect(test.files.write("/a", source())).rejects.toBeInstanceOf(NoSpaceError);
    await expect.poll(() => isReleased).toBe(true);
  });

  it("stops at the abort, also while the source is silent", async () => {
    await using test = await withFiles();
    const controller = new AbortController();
    let cut: Promise<void> | undefined;
    test.server.on("PUT", FS, (call) => {
      cut = closedByClient(call);
      call.request.once("data", () => controller.abort(new Error("enough")));
    });
    const source = async function* (): AsyncGenerator<string> {
      yield "first";
      await new Promise(() => {});
    };
    await expect(test.files.write("/a", source(), { signal: controller.signal })).rejects.toThrow("enough");
    await cut;
  });

  it("takes a silent source for no stall, but a server that does not read for one", async () => {
    await using test = await withFiles({ timeoutMs: 150 });
    const slow = async function* (): AsyncGenerator<string> {
      yield "a";
      await new Promise((resolve) => setTimeout(resolve, 400));
      yield "b";
    };
    await test.files.write("/slow", slow());
    expect(test.stored.get("/slow")?.toString()).toBe("ab");

    test.server.on("PUT", FS, () => {});
    const endless = async function* (): AsyncGenerator<Uint8Array> {
      for (;;) yield new Uint8Array(1024 * 1024);
    };
    await expect(test.files.write("/a", endless())).rejects.toBeInstanceOf(TimeoutError);
  });
});

describe("read", () => {
  it("gives text, bytes and parts", async () => {
    await using test = await withFiles();
    test.stored.set("/a", Buffer.from("\ufeffnaïve ☃"));
    expect(await test.files.read("/a")).toBe("\ufeffnaïve ☃");
    expect(Buffer.from(await test.files.readBytes("/a"))).toEqual(test.stored.get("/a"));
    expect(await test.files.read("/a", { offset: 3, length: 2 })).toBe("na");
    expect(await test.files.read("/a", { offset: 9 })).toBe("e ☃".slice(1));
    test.stored.set("/bad", Buffer.from([65, 255]));
    expect(await test.files.read("/bad")).toBe("A\ufffd");
    test.stored.set("/empty", Buffer.alloc(0));
    expect(await test.files.readBytes("/empty")).toHaveLength(0);
  });

  it.each([{ offset: -1 }, { offset: 0.5 }, { length: 0 }, { length: Number.NaN }])(
    "refuses %o",
    async (options) => {
      await using test = await withFiles();
      await expect(test.files.read("/a", options)).rejects.toBeInstanceOf(InvalidRequestError);
    },
  );

  it("does not take the whole file for a part", async () => {
    await using test = await withFiles();
    test.server.on("GET", FS, ({ response }) => void response.end("all of it"));
    await expect(test.files.read("/a", { offset: 4 })).rejects.toMatchObject({ code: "unsupported" });
  });

  it("throws for a file that is not there", async () => {
    await using test = await withFiles();
    await expect(test.files.read("/none")).rejects.toMatchObject({
      name: "NotFoundError",
      code: "file_not_found",
    });
  });

  it("throws rather than give half a file, whether its length was told or not", async () => {
    await using test = await withFiles();
    for (const headers of [{ "content-length": 1000 }, {}]) {
      test.server.on("GET", FS, ({ response }) => {
        response.writeHead(200, headers);
        response.write("half", () => response.destroy());
      });
      await expect(test.files.read("/a")).rejects.toBeInstanceOf(ConnectionError);
    }
  });

  it("closes the connection when the stream is cancelled or the signal aborts", async () => {
    await using test = await withFiles();
    const closings: Promise<void>[] = [];
    test.server.on("GET", FS, (call: Call) => {
      closings.push(closedByClient(call));
      call.response.write("some");
    });
    const stream = await test.files.readStream("/a");
    const reader = stream.getReader();
    expect((await reader.read()).value).toEqual(new TextEncoder().encode("some"));
    await reader.cancel();

    const controller = new AbortController();
    const other = (await test.files.readStream("/a", { signal: controller.signal })).getReader();
    await other.read();
    const waiting = other.read();
    controller.abort(new Error("enough"));
    await expect(waiting).rejects.toThrow("enough");
    await Promise.all(closings);
    expect(closings).toHaveLength(2);
  });

  it("times out on silence, not on a slow reader", async () => {
    await using test = await withFiles({ timeoutMs: 150 });
    test.server.on("GET", FS, ({ response }) => void response.write("some"));
    const reader = (await test.files.readStream("/a")).getReader();
    await new Promise((resolve) => setTimeout(resolve, 300));
    await reader.read();
    await expect(reader.read()).rejects.toBeInstanceOf(TimeoutError);
  });
});

describe("the tree", () => {
  it("list, stat, exists, mkdir, move, remove", async () => {
    await using test = await withFiles();
    const { server, files } = test;
    const entry = fileEntryWire({ type: "symlink", symlink_target: "/b", size: 12 });
    let moved: unknown;
    server
      .on("GET", `${FS}/dir`, ({ response }) => sendJson(response, 200, { entries: [entry] }))
      .on("GET", `${FS}/stat`, ({ response, query }) => {
        if (query.get("path") === "/a") sendJson(response, 200, entry);
        else sendError(response, 404, "file_not_found", "no such file");
      })
      .on("POST", `${FS}/dir`, ({ response }) => sendJson(response, 201, entry))
      .on("POST", `${FS}/move`, async (call) => {
        moved = await call.json();
        sendJson(call.response, 200, entry);
      })
      .on("DELETE", FS, ({ response, query }) => {
        if (query.get("path") === "/a") response.writeHead(204).end();
        else sendError(response, 404, "file_not_found", "no such file");
      });
    expect(await files.list("/", { depth: 2 })).toEqual([
      {
        name: "a.txt",
        path: "/workspace/a.txt",
        type: "symlink",
        sizeBytes: 12,
        mode: 0o644,
        permissions: "-rw-r--r--",
        owner: "user",
        group: "user",
        modifiedAt: new Date("2026-11-29T16:00:00Z"),
        symlinkTarget: "/b",
      },
    ]);
    expect(server.callsTo("GET", "/fs/dir")[0]?.url).toBe(
      `/v1/sandboxes/${SANDBOX_ID}/fs/dir?path=%2F&depth=2`,
    );
    expect((await files.stat("/a")).sizeBytes).toBe(12);
    expect([await files.exists("/a"), await files.exists("/b")]).toEqual([true, false]);
    await files.mkdir("/d");
    await files.move("/a", "/b");
    expect(moved).toEqual({ source: "/a", destination: "/b" });
    expect([await files.remove("/a"), await files.remove("/b")]).toEqual([true, false]);
  });

  it("does not take a missing sandbox for a missing file", async () => {
    await using test = await withFiles();
    test.server
      .on("GET", `${FS}/stat`, ({ response }) =>
        sendError(response, 404, "sandbox_not_found", "no such sandbox"),
      )
      .on("DELETE", FS, ({ response }) => sendError(response, 404, "sandbox_not_found", "no such sandbox"));
    await expect(test.files.exists("/a")).rejects.toBeInstanceOf(NotFoundError);
    await expect(test.files.remove("/a")).rejects.toBeInstanceOf(NotFoundError);
  });

  it("archives stream both ways", async () => {
    await using test = await withFiles();
    let received = "";
    test.server
      .on("PUT", `${FS}/archive`, async (call) => {
        received = await call.text();
        call.response.writeHead(204).end();
      })
      .on("GET", `${FS}/archive`, ({ response }) => void response.end("tar bytes"));
    await test.files.uploadArchive("/workspace", chunks("tar ", "bytes"), { gzip: true });
    expect(received).toBe("tar bytes");
    const [put] = test.server.callsTo("PUT", "/archive");
    expect(put?.query.get("format")).toBe("tar.gz");
    expect(put?.headers["content-type"]).toBe("application/gzip");
    expect(await new Response(await test.files.downloadArchive("/workspace")).text()).toBe("tar bytes");
    expect(test.server.callsTo("GET", "/archive")[0]?.query.has("format")).toBe(false);
  });
});

describe("watch", () => {
  it("gives changes and stops when the loop is left", async () => {
    await using test = await withFiles();
    let closed: Promise<void> | undefined;
    test.server.on("GET", `${FS}/watch`, (call) => {
      closed = closedByClient(call);
      const send = ndjson(call.response);
      send({ type: "keepalive" });
      send({ type: "create", name: "a" });
      send({ type: "write", name: "sub/b" });
    });
    const seen: unknown[] = [];
    const watcher = await test.files.watch("/workspace", { recursive: true });
    for await (const change of watcher) if (seen.push(change) === 2) break;
    expect(seen).toEqual([
      { type: "create", name: "a" },
      { type: "write", name: "sub/b" },
    ]);
    await closed;
    await expect(watcher[Symbol.asyncIterator]().next()).rejects.toThrow("iterated already");
    expect(test.server.callsTo("GET", "/watch")[0]?.query.get("recursive")).toBe("true");
  });

  it("ends quietly when closed, with an error when the stream ends, with the reason when aborted", async () => {
    await using test = await withFiles();
    let call: Call | undefined;
    test.server.on("GET", `${FS}/watch`, (watching) => {
      call = watching;
      ndjson(watching.response);
    });
    const next = (watcher: AsyncIterable<unknown>): Promise<unknown> =>
      watcher[Symbol.asyncIterator]().next();
    const closing = await test.files.watch("/workspace");
    const ended = next(closing);
    closing.close();
    closing.close();
    expect(await ended).toEqual({ done: true, value: undefined });

    const lost = next(await test.files.watch("/workspace"));
    call?.response.end();
    await expect(lost).rejects.toBeInstanceOf(ConnectionError);

    const controller = new AbortController();
    const aborted = next(await test.files.watch("/workspace", { signal: controller.signal }));
    controller.abort(new Error("enough"));
    await expect(aborted).rejects.toThrow("enough");
  });

  it("throws for a directory that is not there", async () => {
    await using test = await withFiles();
    test.server.on("GET", `${FS}/watch`, ({ response }) =>
      sendError(response, 404, "file_not_found", "no such file"),
    );
    await expect(test.files.watch("/none")).rejects.toBeInstanceOf(NotFoundError);
  });
});
