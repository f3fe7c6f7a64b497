import { createSocket, type Socket as UdpSocket } from "node:dgram";
import { createServer, type Server, type Socket } from "node:net";
import { type DnsQuestion, emptyAnswer, readQuestion, RECORD_TYPE, RESPONSE_CODE } from "./dns-message.ts";
import type { DnsUpstream } from "./dns-upstream.ts";
import { type EgressPolicy, isNeverReachableAddress } from "./egress-policy.ts";
import { listenOnPort } from "./listen-on-port.ts";
import type { SlotPolicies } from "./slot-policies.ts";

/** Questions of one sandbox under way at once; to more the answer is SERVFAIL. */
const QUESTIONS_PER_SLOT = 64;
const TCP_CONNECTIONS_PER_SLOT = 8;
const TCP_IDLE_MS = 10_000;

/**
 * The resolver of all sandboxes. Under a policy it asks nothing upstream that the policy does not allow; whatever the
 * policy, it names no address that no sandbox reaches, so that an inner network stays unseen. Keeps nothing.
 */
export class DnsForwarder {
  readonly #policies: SlotPolicies;
  readonly #upstream: Pick<DnsUpstream, "ask">;
  readonly #underWay = new Map<number, number>();
  readonly #connections = new Map<number, Set<Socket>>();
  #udp: UdpSocket | undefined;
  #tcp: Server | undefined;

  constructor(policies: SlotPolicies, upstream: Pick<DnsUpstream, "ask">) {
    this.#policies = policies;
    this.#upstream = upstream;
  }

  /** Listens on one port for UDP and TCP. @param port tried first. @returns the port */
  async listen(address: string, port: number | undefined): Promise<number> {
    return await listenOnPort(port, async (candidate) => {
      const tcp = createServer((socket) => this.#serveTcp(socket));
      tcp.maxConnections = 1024;
      await new Promise<void>((resolve, reject) => {
        tcp.once("error", reject);
        tcp.listen(candidate, address, resolve);
      });
      const udp = createSocket("udp4");
      try {
        await new Promise<void>((resolve, reject) => {
          udp.once("error", reject);
          udp.bind(candidate, address, resolve);
        });
      } catch (error) {
        tcp.close();
        udp.close();
        throw error;
      }
      udp.on("error", () => {}); // an answer that could not be sent is the asker's loss
      udp.on("message", (message, from) => {
        const slot = this.#policies.slotOf(from.address);
        if (slot === undefined) return;
        void this.#answer(slot, message, false).then((answer) => {
          // Closed meanwhile, it would throw.
          if (answer !== undefined && this.#udp === udp) udp.send(answer, from.port, from.address, () => {});
        });
      });
      tcp.on("error", () => {});
      this.#udp = udp;
      this.#tcp = tcp;
    });
  }

  close(): void {
    this.#udp?.close();
    this.#udp = undefined;
    this.#tcp?.close();
    for (const sockets of this.#connections.values()) for (const socket of sockets) socket.destroy();
  }

  /** The slot is gone. */
  forget(slot: number): void {
    for (const socket of this.#connections.get(slot) ?? []) socket.destroy();
  }

  /** Never rejects, whatever comes. */
  async #answer(slot: number, message: Buffer, overTcp: boolean): Promise<Buffer | undefined> {
    const question = readQuestion(message);
    if (question === undefined) return undefined;
    if ("code" in question)
      return emptyAnswer(
        { id: message.readUInt16BE(0), wire: Buffer.alloc(0), recursionDesired: false },
        question.code,
      );
    const policy = this.#policies.of(slot);
    const ownCode = policy === undefined ? RESPONSE_CODE.REFUSED : codeWithoutAsking(question, policy);
    if (policy === undefined || ownCode !== undefined)
      return emptyAnswer(question, ownCode ?? RESPONSE_CODE.REFUSED);
    const underWay = this.#underWay.get(slot) ?? 0;
    if (underWay >= QUESTIONS_PER_SLOT) return emptyAnswer(question, RESPONSE_CODE.SERVFAIL);
    this.#underWay.set(slot, underWay + 1);
    try {
      return await this.#forward(slot, question, policy, overTcp);
    } catch {
      return emptyAnswer(question, RESPONSE_CODE.SERVFAIL);
    } finally {
      const left = (this.#underWay.get(slot) ?? 1) - 1;
      if (left > 0) this.#underWay.set(slot, left);
      else this.#underWay.delete(slot);
    }
  }

  async #forward(
    slot: number,
    question: DnsQuestion,
    policy: EgressPolicy,
    overTcp: boolean,
  ): Promise<Buffer> {
    const answer = await this.#upstream.ask(slot, question.wire, { overTcp, hasEdns: question.hasEdns });
    if (answer === undefined) return emptyAnswer(question, RESPONSE_CODE.SERVFAIL);
    if (!answer.addresses.every((address) => policy.allowsAddressOfName(address)))
      return emptyAnswer(question, RESPONSE_CODE.NOERROR);
    if (!overTcp && answer.message.length > question.udpBytes)
      return emptyAnswer(question, RESPONSE_CODE.NOERROR, true);
    const message = Buffer.from(answer.message);
    message.writeUInt16BE(question.id, 0);
    return message;
  }

  /** One question after the other: an answer that is not read holds up the next. */
  #serveTcp(socket: Socket): void {
    socket.on("error", () => {});
    const slot = this.#policies.slotOf(socket.remoteAddress ?? "");
    const others = this.#connections.get(slot ?? 0) ?? new Set<Socket>();
    if (slot === undefined || others.size >= TCP_CONNECTIONS_PER_SLOT) {
      socket.resetAndDestroy();
      return;
    }
    this.#connections.set(slot, others.add(socket));
    socket.setTimeout(TCP_IDLE_MS, () => socket.destroy());
    socket.on("close", () => {
      others.delete(socket);
      if (others.size === 0 && this.#connections.get(slot) === others) this.#connections.delete(slot);
    });
    this.#answerAll(slot, socket).catch(() => socket.destroy());
  }

  async #answerAll(slot: number, socket: Socket): Promise<void> {
    let received: Buffer = Buffer.alloc(0);
    for await (const chunk of socket as AsyncIterable<Buffer>) {
      received = Buffer.concat([received, chunk]);
      while (received.length >= 2 && received.length >= 2 + received.readUInt16BE(0)) {
        const end = 2 + received.readUInt16BE(0);
        const answer = await this.#answer(slot, received.subarray(2, end), true);
        received = received.subarray(end);
        if (answer === undefined) return void socket.destroy();
        const length = Buffer.alloc(2);
        length.writeUInt16BE(answer.length);
        await new Promise<void>((resolve, reject) =>
          socket.write(Buffer.concat([length, answer]), (error) => (error ? reject(error) : resolve())),
        );
      }
    }
  }
}

/** What is answered without asking anybody; undefined for what is to be asked. */
function codeWithoutAsking(question: DnsQuestion, policy: EgressPolicy): number | undefined {
  const { name, type } = question;
  if (!question.isInternetClass || !policy.allowsName(name)) return RESPONSE_CODE.REFUSED;
  // Transfers and the other types that stand for more than one record.
  if (type >= RECORD_TYPE.TKEY && type <= RECORD_TYPE.ANY) return RESPONSE_CODE.NOTIMP;
  // There is no IPv6 to a sandbox. A name's service record could lead round the look at its server name (ECH).
  if (type === RECORD_TYPE.AAAA) return RESPONSE_CODE.NOERROR;
  if (policy.hasNames && (type === RECORD_TYPE.SVCB || type === RECORD_TYPE.HTTPS))
    return RESPONSE_CODE.NOERROR;
  if (type === RECORD_TYPE.PTR && isNeverReachableAddress(reversed(name) ?? "1.1.1.1"))
    return RESPONSE_CODE.NOERROR;
  return undefined;
}

/** The address that a name of in-addr.arpa stands for. */
function reversed(name: string): string | undefined {
  const parts = /^(\d+)\.(\d+)\.(\d+)\.(\d+)\.in-addr\.arpa$/.exec(name);
  return parts === null ? undefined : parts.slice(1).toReversed().join(".");
}
