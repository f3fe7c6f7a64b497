import { connect as connectTls } from "node:tls";
import { Duplex } from "node:stream";
import fc from "fast-check";
import { describe, expect, test, vi } from "vitest";
import { type ClientHello, ClientHelloReader } from "../src/network/client-hello.ts";

/** The first bytes a real client sends. */
async function realHello(servername?: string): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let said: () => void = () => {};
  const spoken = new Promise<void>((resolve) => (said = resolve));
  const wire = new Duplex({
    read() {},
    write(chunk: Buffer, _encoding, done) {
      chunks.push(chunk);
      said();
      done();
    },
  });
  const client = connectTls({ socket: wire, ...(servername === undefined ? {} : { servername }) });
  client.on("error", () => {});
  await spoken;
  client.destroy();
  return Buffer.concat(chunks);
}

function read(pieces: readonly Buffer[]): ClientHello | undefined {
  const reader = new ClientHelloReader();
  for (const piece of pieces) {
    const hello = reader.push(piece);
    if (hello !== undefined) return hello;
  }
  return undefined;
}

const u16 = (value: number): Buffer => Buffer.from([value >> 8, value & 255]);
const vector16 = (body: Buffer): Buffer => Buffer.concat([u16(body.length), body]);
const extension = (type: number, body: Buffer): Buffer => Buffer.concat([u16(type), vector16(body)]);
const serverName = (name: string, type = 0): Buffer =>
  extension(0, vector16(Buffer.concat([Buffer.from([type]), vector16(Buffer.from(name))])));

function handshake(extensions: readonly Buffer[]): Buffer {
  const body = Buffer.concat([
    u16(0x0303),
    Buffer.alloc(32, 7),
    Buffer.from([0]),
    vector16(u16(0x1301)),
    Buffer.from([1, 0]),
    vector16(Buffer.concat(extensions)),
  ]);
  return Buffer.concat([Buffer.from([1, 0]), u16(body.length), body]);
}

/** As records of at most `bytes` each. */
function records(message: Buffer, bytes = 16_384): Buffer {
  const out: Buffer[] = [];
  for (let at = 0; at < message.length; at += bytes) {
    const part = message.subarray(at, at + bytes);
    out.push(Buffer.from([22, 3, 1]), vector16(part));
  }
  return Buffer.concat(out);
}

describe("the server's name in a ClientHello", () => {
  test("is read of a real client, in however small pieces it comes", async () => {
    const hello = await realHello("Sub.Example.com");
    const expected = { serverName: "sub.example.com", isEncrypted: false };
    expect(read([hello])).toEqual(expected);
    expect(read([...hello].map((byte) => Buffer.from([byte])))).toEqual(expected);
    expect(read([hello.subarray(0, hello.length - 1)])).toBeUndefined();
  });

  test("is none when the client names none", async () => {
    expect(read([await realHello()])).toEqual({ serverName: undefined, isEncrypted: false });
  });

  test("is read over records as small as a client likes", () => {
    const hello = handshake([extension(10, Buffer.alloc(8)), serverName("a.example")]);
    for (const bytes of [1, 2, 3, 5, 50]) {
      expect(read([records(hello, bytes)])).toEqual({ serverName: "a.example", isEncrypted: false });
    }
  });

  test("costs no more to read in records of a byte each than in large ones", () => {
    const bytes = records(handshake([serverName("a.example"), extension(21, Buffer.alloc(30_000))]), 1);
    const concat = vi.spyOn(Buffer, "concat");
    expect(read([bytes])).toEqual({ serverName: "a.example", isEncrypted: false });
    const copied = concat.mock.results.reduce((sum, { value }) => sum + (value as Buffer).length, 0);
    concat.mockRestore();
    expect(copied).toBeLessThan(2 * bytes.length);
  });

  test("is known not to be all when the real one is encrypted (ECH)", () => {
    expect(read([records(handshake([serverName("a.example"), extension(0xfe0d, Buffer.alloc(9))]))])).toEqual(
      {
        serverName: "a.example",
        isEncrypted: true,
      },
    );
  });

  test.each<[string, Buffer, string]>([
    [
      "two names in two extensions",
      records(handshake([serverName("a.example"), serverName("b.example")])),
      "two servers",
    ],
    [
      "two names in one extension",
      records(
        handshake([
          extension(
            0,
            vector16(
              Buffer.concat(
                ["a.example", "b.example"].map((name) =>
                  Buffer.concat([Buffer.from([0]), vector16(Buffer.from(name))]),
                ),
              ),
            ),
          ),
        ]),
      ),
      "broken",
    ],
    ["a name of another kind", records(handshake([serverName("a.example", 1)])), "broken"],
    [
      "an extension that is longer than its message",
      records(Buffer.concat([handshake([]).subarray(0, -2), Buffer.from([0, 9])])),
      "broken",
    ],
    ["another handshake message", records(Buffer.from([2, 0, 0, 1, 0])), "no ClientHello"],
    ["a hello that is said to be enormous", records(Buffer.from([1, 255, 255, 255, 0])), "too long"],
    ["plain HTTP", Buffer.from("GET / HTTP/1.1\r\n\r\n"), "no TLS"],
    ["an empty record", Buffer.from([22, 3, 1, 0, 0]), "no TLS"],
    ["a record that is too long", Buffer.from([22, 3, 1, 255, 255]), "no TLS"],
    [
      "another kind of record behind a piece of a hello",
      Buffer.concat([Buffer.from([22, 3, 1, 0, 1, 1]), Buffer.from([23, 3, 3, 0, 1, 0])]),
      "no TLS",
    ],
  ])("is refused with %s", (_what, bytes, problem) => {
    expect(read([bytes])).toMatchObject({ problem: expect.stringContaining(problem) as string });
  });

  test("is looked for in any bytes without a crash or an end, and found alike however they are cut", () => {
    const anyBytes = fc.oneof(
      fc.uint8Array({ maxLength: 300 }).map((bytes) => Buffer.from(bytes)),
      fc
        .uint8Array({ maxLength: 300 })
        .map((bytes) => records(Buffer.concat([Buffer.from([1, 0, 0, bytes.length]), Buffer.from(bytes)]))),
      // A whole one with some bytes changed.
      fc.array(fc.tuple(fc.nat(120), fc.nat(255)), { maxLength: 4 }).map((changes) => {
        const hello = records(handshake([serverName("a.example"), extension(43, Buffer.alloc(3))]));
        for (const [at, value] of changes) if (at < hello.length) hello[at] = value;
        return hello;
      }),
    );
    fc.assert(
      fc.property(anyBytes, fc.nat(300), (bytes, cut) => {
        const whole = read([bytes]);
        expect(
          read([bytes.subarray(0, cut), bytes.subarray(cut)].filter(({ length }) => length > 0)),
        ).toEqual(whole);
      }),
      { numRuns: 2000 },
    );
  });
});
