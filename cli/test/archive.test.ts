import { execFileSync } from "node:child_process";
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { guardArchive } from "../src/copy/archive-guard.ts";
import { packDirectory, unpackInto } from "../src/copy/host-archive.ts";

let directory: string;
beforeEach(() => (directory = mkdtempSync(join(tmpdir(), "torpor archive "))));
afterEach(() => rmSync(directory, { recursive: true, force: true }));

async function bytesOf(chunks: AsyncIterable<Uint8Array>): Promise<Buffer> {
  const gathered: Uint8Array[] = [];
  for await (const chunk of chunks) gathered.push(chunk);
  return Buffer.concat(gathered);
}

async function* inPieces(bytes: Uint8Array, size: number): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

function streamOf(bytes: Uint8Array): ReadableStream<Uint8Array> {
  return new ReadableStream({
    start(controller) {
      controller.enqueue(bytes);
      controller.close();
    },
  });
}

/** One tar header with the given fields, its checksum right. */
function header(name: string, type: string, size = 0, link = ""): Buffer {
  const block = Buffer.alloc(512);
  block.write(name, 0);
  block.write("0000755\0", 100);
  block.write("0000000\0", 108);
  block.write("0000000\0", 116);
  block.write(`${size.toString(8).padStart(11, "0")}\0`, 124);
  block.write("00000000000\0", 136);
  block.write("        ", 148);
  block.write(type, 156);
  block.write(link, 157);
  block.write("ustar\u000000", 257);
  const sum = block.reduce((total, byte) => total + byte, 0);
  block.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148);
  return block;
}

const END = Buffer.alloc(1024);

describe("an archive", () => {
  it("goes from a directory to another with everything in it, whatever the sizes of its pieces", async () => {
    const source = join(directory, "source");
    const long = "n".repeat(150);
    mkdirSync(join(source, "deep", long), { recursive: true });
    writeFileSync(join(source, "deep", long, "bytes"), Buffer.from([0, 255, 10, 128]));
    writeFileSync(join(source, "empty"), "");
    writeFileSync(join(source, "ümlaut\nnewline"), "x".repeat(100_000));
    symlinkSync("deep", join(source, "link"));
    writeFileSync(join(source, "run.sh"), "#!/bin/sh\n");
    chmodSync(join(source, "run.sh"), 0o755);
    const tar = await bytesOf(packDirectory(source));
    for (const size of [1 << 20, 511, 4096]) {
      const target = join(directory, `target ${size}`);
      const passed = await bytesOf(guardArchive(inPieces(tar, size)));
      expect(passed.equals(tar)).toBe(true);
      await unpackInto(target, streamOf(passed));
      expect(readFileSync(join(target, "deep", long, "bytes"))).toEqual(Buffer.from([0, 255, 10, 128]));
      expect(readFileSync(join(target, "ümlaut\nnewline"), "utf8")).toHaveLength(100_000);
      expect(lstatSync(join(target, "link")).isSymbolicLink()).toBe(true);
      expect(statSync(join(target, "run.sh")).mode & 0o111).not.toBe(0);
    }
  });

  it("in pax form with long names passes too", async () => {
    const source = join(directory, "s");
    mkdirSync(source);
    writeFileSync(join(source, "é".repeat(120)), "long");
    const tar = execFileSync("tar", ["-C", source, "--format=pax", "-cf", "-", "."]);
    await unpackInto(join(directory, "t"), streamOf(tar));
    expect(readFileSync(join(directory, "t", "é".repeat(120)), "utf8")).toBe("long");
  });

  it.each([
    ["an absolute name", Buffer.concat([header("/etc/evil", "0"), END]), /absolute/],
    ["a way out", Buffer.concat([header("a/../../evil", "0"), END]), /leads out/],
    ["a hard link out", Buffer.concat([header("x", "1", 0, "../../etc/passwd"), END]), /leads out/],
    ["a device", Buffer.concat([header("dev", "3"), END]), /device/],
    ["a fifo", Buffer.concat([header("fifo", "6"), END]), /fifo/],
    [
      "a long name that leads out",
      Buffer.concat([
        header("././@LongLink", "L", 8),
        Buffer.concat([Buffer.from("../evil\0"), Buffer.alloc(504)]),
        header("x", "0"),
        END,
      ]),
      /leads out/,
    ],
    ["a huge extended header", Buffer.concat([header("x", "x", 10_000_000), END]), /extended header/],
    ["a cut-off end", header("file", "0", 5000), /cut off/],
    ["nothing at all", Buffer.alloc(0), /cut off/],
  ])("with %s is refused and nothing of that is written", async (_what, tar, why) => {
    await expect(unpackInto(join(directory, "t"), streamOf(tar))).rejects.toThrow(why);
    expect(existsSync(join(directory, "evil"))).toBe(false);
  });

  it("cannot write through a symlink it brought along", async () => {
    const outside = join(directory, "outside");
    mkdirSync(outside);
    const content = Buffer.concat([Buffer.from("evil"), Buffer.alloc(508)]);
    const tar = Buffer.concat([header("out", "2", 0, outside), header("out/evil", "0", 4), content, END]);
    await unpackInto(join(directory, "t"), streamOf(tar)).catch(() => {});
    expect(existsSync(join(outside, "evil"))).toBe(false);
  });

  it("loses set-id bits on the way", async () => {
    const source = join(directory, "s");
    mkdirSync(source);
    writeFileSync(join(source, "suid"), "");
    chmodSync(join(source, "suid"), 0o4755);
    await unpackInto(join(directory, "t"), streamOf(await bytesOf(packDirectory(source))));
    expect(statSync(join(directory, "t", "suid")).mode & 0o7000).toBe(0);
  });

  it("of a directory that is not there says so", async () => {
    await expect(bytesOf(packDirectory(join(directory, "none")))).rejects.toThrow(/none/);
  });
});
