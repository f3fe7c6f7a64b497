import {
  AuthenticationError,
  FileNotFoundError,
  FilesystemEventType,
  InvalidArgumentError,
  NotEnoughSpaceError,
  type FilesystemEvent,
} from "e2b";
import { beforeAll, describe, expect, test } from "vitest";
import { useInstance } from "../src/index.ts";
import { e2bClients, e2bSandbox, settles, type E2bSandbox } from "./e2b-sandbox.ts";

const torpor = useInstance({ server: true });

describe.each(e2bClients)("files of E2B's client $version", (client) => {
  let sandbox: E2bSandbox;
  beforeAll(async () => {
    sandbox = await e2bSandbox(torpor(), client);
  });

  describe("written and read", () => {
    test("keep text, and tell their name and full path", async () => {
      const info = await sandbox.files.write("note.txt", "héllo 😀\n");
      expect(info).toMatchObject({ name: "note.txt", path: "/home/user/note.txt", type: "file" });
      expect(await sandbox.files.read("note.txt")).toBe("héllo 😀\n");
      expect(await sandbox.files.read("~/note.txt")).toBe("héllo 😀\n");
      expect((await sandbox.commands.run("stat -c '%U %a' note.txt")).stdout).toBe("user 644\n");
    });

    test("keep bytes in every format a client has", async () => {
      const bytes = new Uint8Array(70_000).map((_, at) => (at * 7) % 256);
      await sandbox.files.write("data.bin", bytes.buffer);
      expect(await sandbox.files.read("data.bin", { format: "bytes" })).toEqual(bytes);
      const blob = await sandbox.files.read("data.bin", { format: "blob" });
      expect(new Uint8Array(await blob.arrayBuffer())).toEqual(bytes);
      const stream = await sandbox.files.read("data.bin", { format: "stream" });
      expect(new Uint8Array(await new Response(stream).arrayBuffer())).toEqual(bytes);
      await sandbox.files.write("blob.bin", blob);
      expect((await sandbox.commands.run("cmp data.bin blob.bin && echo same")).stdout).toBe("same\n");
    });

    test("may be empty", async () => {
      await sandbox.files.write("empty", "");
      expect(await sandbox.files.read("empty")).toBe("");
      expect(await sandbox.files.read("empty", { format: "bytes" })).toEqual(new Uint8Array(0));
    });

    test("replace what was there, and make the folders above them as their user's", async () => {
      await sandbox.files.write("deep/er/file", "long before");
      await sandbox.files.write("deep/er/file", "short");
      expect(await sandbox.files.read("deep/er/file")).toBe("short");
      expect((await sandbox.commands.run("stat -c %U deep deep/er")).stdout).toBe("user\nuser\n");
    });

    test("come several at once, and none at all", async () => {
      const written = await sandbox.files.write([
        { path: "many/a.txt", data: "A" },
        { path: "/tmp/b.txt", data: new TextEncoder().encode("B").buffer },
      ]);
      expect(written.map(({ path }) => path)).toEqual(["/home/user/many/a.txt", "/tmp/b.txt"]);
      expect(await sandbox.files.read("/tmp/b.txt")).toBe("B");
      expect(await sandbox.files.write([])).toEqual([]);
    });

    test("travel as one stream of octets, and compressed both ways", async () => {
      const text = "abc".repeat(100_000);
      await sandbox.files.write("octets.txt", text, { useOctetStream: true });
      expect(await sandbox.files.read("octets.txt")).toBe(text);
      await sandbox.files.write("zipped.txt", text, { gzip: true });
      expect((await sandbox.commands.run("wc -c < zipped.txt")).stdout.trim()).toBe("300000");
      expect(await sandbox.files.read("zipped.txt", { gzip: true })).toBe(text);
    });

    test("are streamed up", async () => {
      const pieces = new ReadableStream<Uint8Array>({
        start(controller) {
          for (let at = 0; at < 50; at++) controller.enqueue(new Uint8Array(10_000).fill(at));
          controller.close();
        },
      });
      await sandbox.files.write("streamed.bin", pieces);
      expect((await sandbox.files.getInfo("streamed.bin")).size).toBe(500_000);
    });

    test("belong to root when root writes them, at root's home", async () => {
      const { path } = await sandbox.files.write("roots.txt", "r", { user: "root" });
      expect(path).toBe("/root/roots.txt");
      expect(await sandbox.files.getInfo("/root/roots.txt")).toMatchObject({ owner: "root", group: "root" });
    });

    test("of the kernel, whose size is known only at their end, are read whole", async () => {
      expect(await sandbox.files.read("/proc/version")).toContain("Linux");
    });

    test("that are missing, or no files, are refused", async () => {
      await expect(sandbox.files.read("missing.txt")).rejects.toMatchObject({ name: FileNotFoundError.name });
      await expect(sandbox.files.read("missing.txt")).rejects.toThrow(
        "path '/home/user/missing.txt' does not exist",
      );
      await expect(sandbox.files.read("/home/user")).rejects.toMatchObject({
        name: InvalidArgumentError.name,
      });
      await expect(sandbox.files.write("/home/user", "x")).rejects.toMatchObject({
        name: InvalidArgumentError.name,
      });
      await expect(sandbox.files.read("x", { user: "ghost" })).rejects.toMatchObject({
        name: AuthenticationError.name,
      });
    });

    test("that do not fit leave the old file whole", async () => {
      await sandbox.commands.run("mkdir /small && mount -t tmpfs -o size=64k none /small", { user: "root" });
      await sandbox.files.write("/small/file", "old");
      const refused = sandbox.files.write("/small/file", "x".repeat(200_000));
      await expect(refused).rejects.toMatchObject({ name: NotEnoughSpaceError.name });
      expect(await sandbox.files.read("/small/file")).toBe("old");
    });
  });

  describe("by a signed URL", () => {
    test("are read and written without any key", async () => {
      await sandbox.files.write("signed.txt", "by hand");
      const answer = await fetch(await sandbox.downloadUrl("signed.txt"));
      expect([answer.status, await answer.text()]).toEqual([200, "by hand"]);
      expect(answer.headers.get("content-disposition")).toContain("signed.txt");
      const form = new FormData();
      form.append("file", new Blob(["uploaded"]), "ignored.txt");
      const uploaded = await fetch(await sandbox.uploadUrl("up.txt"), { method: "POST", body: form });
      expect(uploaded.status).toBe(200);
      expect(await sandbox.files.read("up.txt")).toBe("uploaded");
    });

    test("are not read by one for another path, nor after its time", async () => {
      const url = new URL(await sandbox.downloadUrl("signed.txt"));
      url.searchParams.set("path", "/etc/hostname");
      expect((await fetch(url)).status).toBe(401);
      const expired = await fetch(await sandbox.downloadUrl("signed.txt", { useSignatureExpiration: -10 }));
      expect(expired.status).toBe(401);
      expect(
        await (await fetch(await sandbox.downloadUrl("signed.txt", { useSignatureExpiration: 60 }))).text(),
      ).toBe("by hand");
    });

    test("come in part when a range is asked for", async () => {
      const answer = await fetch(await sandbox.downloadUrl("signed.txt"), {
        headers: { range: "bytes=3-6" },
      });
      expect([answer.status, await answer.text()]).toEqual([206, "hand"]);
    });
  });

  describe("looked at", () => {
    test("tell all that E2B tells of a file and a folder", async () => {
      await sandbox.files.write("looked.txt", "four");
      expect(await sandbox.files.getInfo("looked.txt")).toMatchObject({
        name: "looked.txt",
        path: "/home/user/looked.txt",
        type: "file",
        size: 4,
        mode: 0o644,
        permissions: "-rw-r--r--",
        owner: "user",
        group: "user",
      });
      const folder = await sandbox.files.getInfo("/home/user");
      expect(folder).toMatchObject({ type: "dir", permissions: expect.stringMatching(/^drwx/) as string });
      expect(folder.modifiedTime).toBeInstanceOf(Date);
    });

    test("tell where a link leads", async () => {
      await sandbox.commands.run("ln -sf looked.txt one && ln -sf one two");
      expect(await sandbox.files.getInfo("two")).toMatchObject({
        type: "file",
        symlinkTarget: "/home/user/looked.txt",
        permissions: "Lrwxrwxrwx",
      });
    });

    test("are there or not", async () => {
      expect(await sandbox.files.exists("looked.txt")).toBe(true);
      expect(await sandbox.files.exists("/home")).toBe(true);
      expect(await sandbox.files.exists("looked.not")).toBe(false);
      await expect(sandbox.files.getInfo("looked.not")).rejects.toMatchObject({
        name: FileNotFoundError.name,
      });
    });

    test("are listed to the depth asked for, folders before what is in them", async () => {
      await sandbox.files.write([
        { path: "tree/file1", data: "" },
        { path: "tree/sub1/in1", data: "" },
        { path: "tree/sub1/deep/in2", data: "" },
        { path: "tree/sub2/in3", data: "" },
      ]);
      const names = async (depth?: number) =>
        (await sandbox.files.list("tree", depth === undefined ? {} : { depth })).map(({ path }) =>
          path.slice("/home/user/tree/".length),
        );
      expect(await names()).toEqual(["file1", "sub1", "sub2"]);
      expect(await names(2)).toEqual(["file1", "sub1", "sub1/deep", "sub1/in1", "sub2", "sub2/in3"]);
      expect(await names(3)).toHaveLength(7);
      await expect(names(0)).rejects.toThrow("depth should be at least one");
    });

    test("are not listed where there is no folder", async () => {
      await expect(sandbox.files.list("nowhere")).rejects.toMatchObject({ name: FileNotFoundError.name });
      await expect(sandbox.files.list("looked.txt")).rejects.toMatchObject({
        name: InvalidArgumentError.name,
      });
    });
  });

  describe("and folders", () => {
    test("are made once", async () => {
      expect(await sandbox.files.makeDir("made/one")).toBe(true);
      expect(await sandbox.files.makeDir("made/one")).toBe(false);
      await sandbox.files.write("made/file", "x");
      await expect(sandbox.files.makeDir("made/file")).rejects.toMatchObject({
        name: InvalidArgumentError.name,
      });
    });

    test("are moved, also into folders that are not there yet", async () => {
      await sandbox.files.write("from.txt", "moving");
      expect(await sandbox.files.rename("from.txt", "other/place/to.txt")).toMatchObject({
        name: "to.txt",
        path: "/home/user/other/place/to.txt",
        type: "file",
      });
      expect(await sandbox.files.exists("from.txt")).toBe(false);
      await expect(sandbox.files.rename("from.txt", "x")).rejects.toMatchObject({
        name: FileNotFoundError.name,
      });
    });

    test("are removed whole, and removed again without complaint", async () => {
      await sandbox.files.write("gone/a/b", "x");
      await sandbox.files.remove("gone");
      expect(await sandbox.files.exists("gone")).toBe(false);
      await sandbox.files.remove("gone");
    });
  });

  describe("with metadata", () => {
    test("keep it through a move, and lose it when written without", async () => {
      await sandbox.files.write("tagged.txt", "x", { metadata: { author: "Ada", "Work-Item": "7" } });
      expect((await sandbox.files.getInfo("tagged.txt")).metadata).toEqual({
        author: "Ada",
        "work-item": "7",
      });
      const moved = await sandbox.files.rename("tagged.txt", "tagged2.txt");
      expect(moved.metadata).toEqual({ author: "Ada", "work-item": "7" });
      await sandbox.files.write("tagged2.txt", "y");
      expect((await sandbox.files.getInfo("tagged2.txt")).metadata).toBeUndefined();
    });

    test("of more than a file can hold are refused", async () => {
      const refused = sandbox.files.write("heavy.txt", "x", { metadata: { a: "v".repeat(4096) } });
      await expect(refused).rejects.toMatchObject({ name: InvalidArgumentError.name });
    });
  });

  describe("watched", () => {
    async function watching(path: string, options: { recursive?: boolean; includeEntry?: boolean } = {}) {
      const events: FilesystemEvent[] = [];
      const handle = await sandbox.files.watchDir(path, (event: FilesystemEvent) => void events.push(event), {
        timeoutMs: 0,
        ...options,
      });
      const sees = (type: FilesystemEventType, name: string) =>
        settles(() =>
          Promise.resolve(
            expect(events.map((event) => `${event.type} ${event.name}`)).toContain(`${type} ${name}`),
          ),
        );
      return { handle, events, sees };
    }

    test("tell of what clients write, in a file that was there and in a new one", async () => {
      await sandbox.files.write("seen/old.txt", "1");
      const { handle, events, sees } = await watching("seen");
      await sandbox.files.write("seen/old.txt", "2");
      await sees(FilesystemEventType.WRITE, "old.txt");
      await sandbox.files.write("seen/new.txt", "3");
      await sees(FilesystemEventType.CREATE, "new.txt");
      await sees(FilesystemEventType.WRITE, "new.txt");
      expect(events.some(({ name }) => name.includes("torpor"))).toBe(false);
      await handle.stop();
    });

    test("tell of what programs do", async () => {
      await sandbox.files.makeDir("busy");
      const { handle, sees } = await watching("busy");
      await sandbox.commands.run("cd busy; echo x > f; chmod 600 f; mv f g; rm g");
      await sees(FilesystemEventType.CREATE, "f");
      await sees(FilesystemEventType.WRITE, "f");
      await sees(FilesystemEventType.CHMOD, "f");
      await sees(FilesystemEventType.RENAME, "f");
      await sees(FilesystemEventType.CREATE, "g");
      await sees(FilesystemEventType.REMOVE, "g");
      await handle.stop();
    });

    test("tell of folders that came later when asked to go deep", async () => {
      await sandbox.files.makeDir("grow");
      const { handle, sees } = await watching("grow", { recursive: true });
      await sandbox.files.makeDir("grow/nested");
      await sees(FilesystemEventType.CREATE, "nested");
      await sandbox.files.write("grow/nested/leaf.txt", "x");
      await sees(FilesystemEventType.WRITE, "nested/leaf.txt");
      await handle.stop();
    });

    test("come with what the entry is when asked for", async () => {
      await sandbox.files.makeDir("entries");
      const { handle, events, sees } = await watching("entries", { includeEntry: true });
      await sandbox.files.write("entries/e.txt", "four");
      await sees(FilesystemEventType.WRITE, "e.txt");
      expect(events.find(({ type }) => type === FilesystemEventType.WRITE)?.entry).toMatchObject({
        path: "/home/user/entries/e.txt",
        size: 4,
      });
      await handle.stop();
    });

    test("must be in a folder", async () => {
      const ignore = (): void => undefined;
      await expect(sandbox.files.watchDir("nowhere", ignore)).rejects.toMatchObject({
        name: FileNotFoundError.name,
      });
      await expect(sandbox.files.watchDir("note.txt", ignore)).rejects.toMatchObject({
        name: InvalidArgumentError.name,
      });
    });
  });
});
