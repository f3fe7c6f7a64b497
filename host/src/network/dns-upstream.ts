import { randomInt } from "node:crypto";
import { createSocket } from "node:dgram";
import { connect, isIPv6 } from "node:net";
import { addressQuestion, type DnsAnswer, readAnswer, writeQuestion } from "./dns-message.ts";

/** A server that does not answer for this long is passed over. */
const ANSWER_TIMEOUT_MS = 2_000;
/** Each server is asked so many times, in turn. */
const ROUNDS = 2;
/** What fits one packet of every path (DNS flag day 2020), bytes. */
const UDP_BYTES = 1_232;
/** Questions under way at once, of all sandboxes together: each holds a socket. */
const WIDTH = 512;

/** Gives a question up. */
type GiveUp = () => void;

export interface UpstreamAnswer extends DnsAnswer {
  message: Buffer;
}

/** Asks the machine's own name servers: each question by a socket of its own, so that nobody guesses port and id. */
export class DnsUpstream {
  readonly #servers: readonly string[];
  readonly #port: number;
  /** By slot, what gives up its questions under way, the oldest first. */
  readonly #underWay = new Map<number, Set<GiveUp>>();
  #width = 0;
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
   * Asks the servers in turn until one answers. Nobody waits for others: when as much is under way as may be, the oldest
   * question of the sandbox that has most of them is given up for one of a sandbox that has fewer.
   *
   * @param slot whose question it is. @param wire name, type and class. @returns undefined when none answers, or it is given up
   */
  async ask(
    slot: number,
    wire: Buffer,
    { overTcp = false, hasEdns = false }: { overTcp?: boolean; hasEdns?: boolean } = {},
  ): Promise<UpstreamAnswer | undefined> {
    const own = this.#underWay.get(slot) ?? new Set();
    if (this.#servers.length === 0 || !this.#makeRoom(own.size)) return undefined;
    const given = new AbortController();
    const giveUp = (): void => given.abort();
    this.#underWay.set(slot, own.add(giveUp));
    this.#width += 1;
    this.#asked += 1;
    try {
      for (let round = 0; round < ROUNDS; round += 1) {
        for (const server of this.#servers) {
          const exchange = overTcp ? exchangeTcp : exchangeUdp;
          const answer = await exchange(server, this.#port, wire, hasEdns, given.signal);
          if (answer !== undefined) return answer;
          if (given.signal.aborted) return undefined;
        }
      }
      return undefined;
    } finally {
      this.#end(slot, own, giveUp);
    }
  }

  /** @param own how many are under way of who wants another. @returns whether there is room for it */
  #makeRoom(own: number): boolean {
    if (this.#width < WIDTH) return true;
    const [slot, most] = [...this.#underWay].reduce((a, b) => (b[1].size > a[1].size ? b : a));
    const [oldest] = most;
    if (oldest === undefined || most.size <= own + 1) return false;
    this.#end(slot, most, oldest);
    oldest();
    return true;
  }

  #end(slot: number, all: Set<GiveUp>, giveUp: GiveUp): void {
    if (!all.delete(giveUp)) return; // given up before
    this.#width -= 1;
    if (all.size === 0 && this.#underWay.get(slot) === all) this.#underWay.delete(slot);
  }

  /** IPv4 addresses of a name; none when it has none, or nobody knows. @param slot whose question it is */
  async addressesOf(name: string, slot: number): Promise<string[]> {
    const wire = addressQuestion(name);
    const answer = await this.ask(slot, wire, { hasEdns: true });
    if (answer?.isTruncated !== true) return answer?.addresses ?? [];
    return (await this.ask(slot, wire, { overTcp: true, hasEdns: true }))?.addresses ?? [];
  }
}

function exchangeUdp(
  server: string,
  port: number,
  wire: Buffer,
  hasEdns: boolean,
  signal: AbortSignal,
): Promise<UpstreamAnswer | undefined> {
  const id = randomInt(65_536);
  return new Promise((resolve) => {
    const socket = createSocket(isIPv6(server) ? "udp6" : "udp4");
    const settle = (answer: UpstreamAnswer | undefined): void => {
      clearTimeout(timer);
      signal.removeEventListener("abort", onGivenUp);
      socket.removeAllListeners().on("error", () => {});
      socket.close();
      resolve(answer);
    };
    const onGivenUp = (): void => settle(undefined);
    signal.addEventListener("abort", onGivenUp);
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
  signal: AbortSignal,
): Promise<UpstreamAnswer | undefined> {
  const id = randomInt(65_536);
  return new Promise((resolve) => {
    const socket = connect({ host: server, port });
    const settle = (answer: UpstreamAnswer | undefined): void => {
      clearTimeout(timer);
      signal.removeEventListener("abort", onGivenUp);
      socket.destroy();
      resolve(answer);
    };
    const onGivenUp = (): void => settle(undefined);
    signal.addEventListener("abort", onGivenUp);
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
