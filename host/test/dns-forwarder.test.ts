import { createSocket } from "node:dgram";
import { connect } from "node:net";
import type { NetworkPolicy } from "@torpor/protocol";
import fc from "fast-check";
import { afterEach, describe, expect, test } from "vitest";
import { DnsForwarder } from "../src/network/dns-forwarder.ts";
import { addressQuestion, readAnswer, readQuestion, writeQuestion } from "../src/network/dns-message.ts";
import { DnsUpstream } from "../src/network/dns-upstream.ts";
import { LoopbackPolicies } from "./fakes/loopback-policies.ts";
import { until } from "./fakes/until.ts";

const closing: (() => void)[] = [];
afterEach(() => {
  for (const close of closing.splice(0)) close();
});

/** A name server whose answers name these addresses, or do whatever `answer` says. */
async function nameServer(
  answer: (question: Buffer) => Buffer | undefined,
): Promise<{ port: number; asked: string[] }> {
  const socket = createSocket("udp4");
  const asked: string[] = [];
  socket.on("message", (message, from) => {
    const question = readQuestion(message);
    asked.push(question === undefined || "code" in question ? "?" : question.name);
    const said = answer(message);
    if (said !== undefined) socket.send(said, from.port, from.address);
  });
  await new Promise<void>((resolve) => socket.bind(0, "127.0.0.1", resolve));
  closing.push(() => socket.close());
  return { port: socket.address().port, asked };
}

function answerWith(question: Buffer, addresses: readonly string[]): Buffer {
  const answer = Buffer.concat([
    question,
    ...addresses.map((address) =>
      Buffer.from([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, ...address.split(".").map(Number)]),
    ),
  ]);
  answer.writeUInt16BE(0x8180, 2);
  answer.writeUInt16BE(addresses.length, 6);
  return answer;
}

async function forwarder(network: NetworkPolicy, upstreamPort: number): Promise<number> {
  const dns = new DnsForwarder(new LoopbackPolicies(network), new DnsUpstream(["127.0.0.1"], upstreamPort));
  const port = await dns.listen("127.0.0.1", undefined);
  closing.push(() => dns.close());
  return port;
}

function exchange(port: number, message: Buffer): Promise<Buffer> {
  const socket = createSocket("udp4");
  return new Promise((resolve) => {
    socket.once("message", (answer) => {
      socket.close();
      resolve(answer);
    });
    socket.send(message, port, "127.0.0.1");
  });
}

function question(name: string, type = 1): Buffer {
  const wire = addressQuestion(name);
  wire.writeUInt16BE(type, wire.length - 4);
  return writeQuestion(4711, wire, undefined);
}

async function ask(port: number, name: string, type = 1): Promise<string> {
  const answer = await exchange(port, question(name, type));
  const wire = question(name, type).subarray(12);
  const read = readAnswer(answer, 4711, wire);
  return read === undefined ? "broken" : [read.code, ...read.addresses].join(" ");
}

describe("the way to the name servers", () => {
  test("stays free for a sandbox while others ask for all they can of what is not answered", async () => {
    const upstream = await nameServer((message) => {
      const asked = readQuestion(message);
      const isQuick = asked !== undefined && !("code" in asked) && asked.name === "quick.example";
      return isQuick ? answerWith(message, ["203.0.113.7"]) : undefined;
    });
    const dns = new DnsUpstream(["127.0.0.1"], upstream.port);
    for (let slot = 1; slot <= 20; slot += 1)
      for (let index = 0; index < 100; index += 1)
        void dns.ask(slot, addressQuestion(`slow${index}.example`));
    await until(() => upstream.asked.length > 100);
    const askedAt = performance.now();
    expect((await dns.ask(99, addressQuestion("quick.example")))?.addresses).toEqual(["203.0.113.7"]);
    expect(performance.now() - askedAt).toBeLessThan(1500); // less than a server is waited for
  });
});

describe("the resolver of sandboxes", () => {
  test("passes on what may be asked, under a number of its own", async () => {
    const ids: number[] = [];
    const upstream = await nameServer((message) => {
      ids.push(message.readUInt16BE(0));
      return answerWith(message, ["203.0.113.7"]);
    });
    const port = await forwarder("internet", upstream.port);
    expect(await ask(port, "Some.Example")).toBe("0 203.0.113.7");
    expect(await ask(port, "some.example", 16)).toMatch(/^0/);
    expect(upstream.asked).toEqual(["some.example", "some.example"]);
    expect(ids).not.toEqual([4711, 4711]);
  });

  test("asks nobody under none, nor for names that a policy does not allow", async () => {
    const upstream = await nameServer((message) => answerWith(message, ["203.0.113.7"]));
    const none = await forwarder("none", upstream.port);
    const some = await forwarder(
      { egress: "none", allow: ["*.ok.example", "203.0.113.0/24"], deny: ["bad.ok.example"] },
      upstream.port,
    );
    for (const type of [1, 5, 12, 16, 28, 65]) expect(await ask(none, "secret.ok.example", type)).toBe("5");
    for (const name of ["ok.example", "bad.ok.example", "x.ok.example.evil.example", "evil.example"])
      expect(await ask(some, name)).toBe("5");
    expect(upstream.asked).toEqual([]);
    expect(await ask(some, "x.ok.example")).toBe("0 203.0.113.7");
  });

  test.each(["10.0.0.1", "169.254.169.254", "127.0.0.1", "198.18.0.9", "203.0.113.200"])(
    "names no address that the sandbox does not reach, such as %s, nor one beside it",
    async (address) => {
      const upstream = await nameServer((message) => answerWith(message, ["203.0.113.7", address]));
      const port = await forwarder(
        { egress: "internet", allow: [], deny: ["203.0.113.128/25"] },
        upstream.port,
      );
      expect(await ask(port, "rebind.example")).toBe("0");
    },
  );

  test("answers for IPv6, ECH and inner addresses by itself, with nothing", async () => {
    const upstream = await nameServer((message) => answerWith(message, []));
    const port = await forwarder({ egress: "internet", allow: [], deny: ["bad.example"] }, upstream.port);
    expect(await ask(port, "a.example", 28)).toBe("0");
    expect(await ask(port, "a.example", 65)).toBe("0");
    expect(await ask(port, "1.0.0.10.in-addr.arpa", 12)).toBe("0");
    expect(await ask(port, "a.example", 252)).toBe("4");
    expect(upstream.asked).toEqual([]);
    expect(await ask(port, "7.113.0.203.in-addr.arpa", 12)).toBe("0");
    expect(upstream.asked).toEqual(["7.113.0.203.in-addr.arpa"]);
  });

  test("says so when no name server answers, or with garbage", async () => {
    const upstream = await nameServer((message) => {
      const other = answerWith(message, ["203.0.113.7"]);
      other.writeUInt16BE(other.readUInt16BE(0) ^ 1, 0); // another's number
      return other;
    });
    expect(await ask(await forwarder("internet", upstream.port), "a.example")).toBe("2");
  }, 20_000);

  test("may be closed while a name server has a question", async () => {
    let heard = (): void => {};
    const asked = new Promise<void>((resolve) => {
      heard = resolve;
    });
    let finish: (answer: undefined) => void = () => {};
    const late = new Promise<undefined>((resolve) => (finish = resolve));
    const dns = new DnsForwarder(new LoopbackPolicies("internet"), {
      ask: () => {
        heard();
        return late;
      },
    });
    const port = await dns.listen("127.0.0.1", undefined);
    const socket = createSocket("udp4");
    closing.push(() => socket.close());
    socket.send(question("a.example"), port, "127.0.0.1");
    await asked;
    const unhandled: unknown[] = [];
    const onUnhandled = (error: unknown): void => void unhandled.push(error);
    process.on("unhandledRejection", onUnhandled);
    closing.push(() => void process.off("unhandledRejection", onUnhandled));
    dns.close();
    finish(undefined);
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(unhandled).toEqual([]);
  });

  test("answers over TCP too, several questions one after the other, and leaves what is broken", async () => {
    const upstream = await nameServer((message) => answerWith(message, ["203.0.113.7"]));
    const port = await forwarder("none", upstream.port);
    const socket = connect(port, "127.0.0.1");
    closing.push(() => socket.destroy());
    const message = question("a.example");
    const framed = Buffer.concat([Buffer.from([0, message.length]), message]);
    let received = Buffer.alloc(0);
    const twoAnswers = new Promise<void>((resolve) =>
      socket.on("data", (chunk) => {
        received = Buffer.concat([received, chunk]);
        if (received.length >= 2 * framed.length) resolve();
      }),
    );
    socket.write(Buffer.concat([framed, framed.subarray(0, 5)]));
    socket.write(framed.subarray(5));
    await twoAnswers;
    const ended = new Promise((resolve) => socket.once("close", resolve));
    socket.on("error", () => {});
    socket.write(Buffer.from([0, 3, 1, 2, 3]));
    await ended;
  });

  test("survives whatever a sandbox sends", async () => {
    const upstream = await nameServer((message) => answerWith(message, ["203.0.113.7"]));
    const port = await forwarder("internet", upstream.port);
    const socket = createSocket("udp4");
    closing.push(() => socket.close());
    const base = question("a.example");
    await fc.assert(
      fc.asyncProperty(
        fc.oneof(
          fc.uint8Array({ maxLength: 600 }).map((bytes) => Buffer.from(bytes)),
          fc.array(fc.tuple(fc.nat(base.length - 1), fc.nat(255)), { maxLength: 5 }).map((changes) => {
            const message = Buffer.from(base);
            for (const [at, value] of changes) message[at] = value;
            return message;
          }),
        ),
        async (message) => {
          const read = readQuestion(message);
          if (read !== undefined && !("code" in read))
            expect(read.wire.length).toBeLessThanOrEqual(message.length - 12);
          await new Promise<void>((resolve) =>
            // A moment for what listens: the kernel drops what does not fit its buffer.
            socket.send(message, port, "127.0.0.1", () => setImmediate(resolve)),
          );
        },
      ),
      { numRuns: 300 },
    );
    expect(await ask(port, "a.example")).toBe("0 203.0.113.7");
  }, 20_000);

  test("reads whatever a name server says without a crash", () => {
    const wire = addressQuestion("a.example");
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), fc.nat(65_535), (bytes, counts) => {
        const head = Buffer.concat([
          Buffer.from([0, 1, 0x81, 0x80, 0, 1, counts >> 8, counts & 255, 0, 0, 0, 0]),
          wire,
        ]);
        readAnswer(Buffer.concat([head, Buffer.from(bytes)]), 1, wire);
        readAnswer(Buffer.from(bytes), 1, wire);
      }),
    );
  });
});
