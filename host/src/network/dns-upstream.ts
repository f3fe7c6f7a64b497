import { randomInt } from "node:crypto";
import { createSocket } from "node:dgram";
import { connect, isIPv6 } from "node:net";
import { Gate } from "@torpor/base";
import { addressQuestion, type DnsAnswer, readAnswer, writeQuestion } from "./dns-message.ts";

/** A server that does not answer for this long is passed over. */
const ANSWER_TIMEOUT_MS = 2_000;
/** Each server is asked so many times, in turn. */
const ROUNDS = 2;
/** What fits one packet of every path (DNS flag day 2020), bytes. */
const UDP_BYTES = 1_232;
/** Questions under way at once, of all sandboxes together: each holds a socket. */
const WIDTH = 512;

export interface UpstreamAnswer extends DnsAnswer {
  message: Buffer;
}

/** Asks the machine's own name servers: each question by a socket of its own, so that nobody guesses port and id. */
export class DnsUpstream {
  readonly #servers: readonly string[];
  readonly #port: number;
  readonly #width = new Gate(WIDTH);
  #asked = 0;

  /** @param servers IPv4 or IPv6 addresses */
  constructor(servers: readonly string[], port = 53) {
    this.#servers = servers;
    this.#port = port;
  }

  /** Questions sent so far, each counted once however many servers it went to. */
  get asked(): number {
    return this.#asked;
  }

  /**
   * Asks the servers in turn until one answers.
   *
   * @param wire name, type and class. @returns undefined when none answers
   */
  async ask(
    wire: Buffer,
    options: { overTcp?: boolean; hasEdns?: boolean } = {},
  ): Promise<UpstreamAnswer | undefined> {
    if (this.#servers.length === 0) return undefined;
    return await this.#width.run(async () => {
      this.#asked += 1;
      for (let round = 0; round < ROUNDS; round += 1) {
        for (const server of this.#servers) {
          const exchange = options.overTcp === true ? exchangeTcp : exchangeUdp;
          const answer = await exchange(server, this.#port, wire, options.hasEdns === true);
          if (answer !== undefined) return answer;
        }
      }
      return undefined;
    });
  }

  /** IPv4 addresses of a name; none when it has none, or nobody knows. */
  async addressesOf(name: string): Promise<string[]> {
    const wire = addressQuestion(name);
    const answer = await this.ask(wire, { hasEdns: true });
    if (answer?.isTruncated !== true) return answer?.addresses ?? [];
    return (await this.ask(wire, { overTcp: true, hasEdns: true }))?.addresses ?? [];
  }
}

function exchangeUdp(
  server: string,
  port: number,
  wire: Buffer,
  hasEdns: boolean,
): Promise<UpstreamAnswer | undefined> {
  const id = randomInt(65_536);
  return new Promise((resolve) => {
    const socket = createSocket(isIPv6(server) ? "udp6" : "udp4");
    const settle = (answer: UpstreamAnswer | undefined): void => {
      clearTimeout(timer);
      socket.removeAllListeners().on("error", () => {});
      socket.close();
      resolve(answer);
    };
    const timer = setTimeout(() => settle(undefined), ANSWER_TIMEOUT_MS);
    socket.on("error", () => settle(undefined));
    // Connected, so that only the server is heard, and its absence too.
    socket.on("message", (message) => {
      const answer = readAnswer(message, id, wire);
      if (answer !== undefined) settle({ ...answer, message });
    });
    socket.on("connect", () => socket.send(writeQuestion(id, wire, hasEdns ? UDP_BYTES : undefined)));
    socket.connect(port, server);
  });
}

function exchangeTcp(
  server: string,
  port: number,
  wire: Buffer,
  hasEdns: boolean,
): Promise<UpstreamAnswer | undefined> {
  const id = randomInt(65_536);
  return new Promise((resolve) => {
    const socket = connect({ host: server, port });
    const settle = (answer: UpstreamAnswer | undefined): void => {
      clearTimeout(timer);
      socket.destroy();
      resolve(answer);
    };
    const timer = setTimeout(() => settle(undefined), ANSWER_TIMEOUT_MS);
    let received = Buffer.alloc(0);
    socket.on("error", () => settle(undefined));
    socket.on("close", () => settle(undefined));
    socket.on("data", (chunk) => {
      received = Buffer.concat([received, chunk]);
      if (received.length < 2 || received.length < 2 + received.readUInt16BE(0)) return;
      const message = received.subarray(2, 2 + received.readUInt16BE(0));
      const answer = readAnswer(message, id, wire);
      settle(answer === undefined ? undefined : { ...answer, message });
    });
    const question = writeQuestion(id, wire, hasEdns ? UDP_BYTES : undefined);
    const length = Buffer.alloc(2);
    length.writeUInt16BE(question.length);
    socket.write(Buffer.concat([length, question]));
  });
}
