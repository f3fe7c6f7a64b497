import { randomBytes } from "node:crypto";
import { Agent, type IncomingMessage, request } from "node:http";
import { connect, type Socket, type TcpNetConnectOpts } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { redactJson } from "@torpor/base";
import { type Attestation, attestationSchema, CodedError, GUEST_PORT } from "@torpor/protocol";

/** What of an identity is nobody's yet: given ahead to a copy that waits. Wire names as the guest agent takes them. */
export interface GuestPreparation {
  entropy_base64?: string;
  machine_id?: string;
  resolv_conf?: string;
  pids_limit?: number;
  env?: Record<string, string>;
  default_user?: string;
  default_workdir?: string;
  services?: GuestService[];
  services_timeout_ms?: number;
  /** A service that does not come up in that time is tried on, and fails nothing. */
  services_may_fail?: boolean;
}

/** A program the guest agent starts, waits for, and starts anew when it dies. */
interface GuestService {
  name: string;
  command: readonly string[];
  /** Default: the machine's default user. */
  user: string | undefined;
  /** Answers 2xx once it serves. */
  ready_url: string | undefined;
}

/** Identity given to a restored guest. */
export interface GuestIdentity {
  generation: number;
  sandbox_id: string;
  template: string;
  hostname: string;
  /** Left out when the copy was prepared with one. */
  machine_id?: string;
  env: Record<string, string>;
  access_token: string;
  host_key: string;
  /** The key in force when the guest was frozen, or with which it was prepared before it was anybody's. */
  previous_host_key?: string;
  entropy_base64: string;
  resolv_conf: string;
  default_user: string;
  default_workdir: string;
  pids_limit: number;
  deadline_unix_ms?: number;
  tenant: string;
  /** A shell command that is run once it serves. */
  start?: { command: string; user: string; workdir: string };
}

/** Hooks have limits of their own; this one is for all of them together. */
const FREEZE_TIMEOUT_MS = 120_000;
const INIT_TIMEOUT_MS = 15_000;
/** A SYN sent before the guest's network is up is lost and sent again only after a second: it is tried anew instead. */
const TRY_MS = 200;
/** Largest answer read from a guest on these calls, bytes. */
const MAX_ANSWER_BYTES = 256 * 1024;

/** What proves to an agent that it is the host who speaks: 192 random bits. */
export function newHostKey(): string {
  return randomBytes(24).toString("hex");
}

/** Keeps connections, and takes one that was opened before there was a request for it. */
class ReadyAgent extends Agent {
  #opened: Socket | undefined;

  /** Becomes the next request's connection. */
  give(opened: Socket): void {
    this.#opened = opened;
    opened.once("error", () => {}); // it is closed then, and not used
  }

  override createConnection(options: TcpNetConnectOpts): Socket {
    const opened = this.#opened;
    this.#opened = undefined;
    return opened?.readyState === "open" ? opened : connect(options);
  }

  override destroy(): void {
    this.#opened?.destroy();
    super.destroy();
  }
}

/** HTTP to the agent of one machine. Keep-alive connections are its own and go with {@link GuestClient.close}. */
export class GuestClient {
  readonly address: string;
  readonly agent = new ReadyAgent({
    keepAlive: true,
    maxSockets: 1024,
    maxFreeSockets: 16,
    scheduling: "lifo",
  });

  /** For ports of the owner's own: programs close idle connections when they like, so none is used twice. */
  readonly portAgent = new Agent({ keepAlive: false, maxSockets: 1024 });
  readonly #tunnels = new Set<Socket>();
  /** Until then an agent that has not been asked anything yet may come up. */
  #upBy = 0;

  constructor(address: string) {
    this.address = address;
  }

  /** A connection that has left HTTP, and goes when the others go. @returns to be called when it has ended by itself */
  holdTunnel(socket: Socket): () => void {
    this.#tunnels.add(socket);
    return () => void this.#tunnels.delete(socket);
  }

  /**
   * Waits until the agent answers, asking every few milliseconds.
   *
   * @returns whether it is locked (as after a restore). @throws CodedError `deadline_exceeded` after `timeoutMs`.
   */
  waitUntilUp(timeoutMs: number, signal?: AbortSignal): Promise<{ locked: boolean }> {
    return this.#tryFor(timeoutMs, signal, () => this.health(TRY_MS));
  }

  /**
   * Waits until the machine takes connections, and keeps one for the next call. Less than {@link GuestClient.waitUntilUp}:
   * the agent is not asked, which takes one that has just been restored some milliseconds, whatever the question. What is left
   * of the time is its init's too.
   *
   * @throws CodedError `deadline_exceeded` after `timeoutMs`
   */
  async waitUntilReachable(timeoutMs: number, signal: AbortSignal): Promise<void> {
    this.#upBy = performance.now() + timeoutMs;
    this.agent.give(await this.#tryFor(timeoutMs, signal, () => openConnection(this.address)));
  }

  async #tryFor<T>(
    timeoutMs: number,
    signal: AbortSignal | undefined,
    attempt: () => Promise<T>,
  ): Promise<T> {
    const deadline = performance.now() + timeoutMs;
    let last: unknown;
    for (let waitMs = 2; performance.now() < deadline; waitMs = Math.min(waitMs * 1.5, 50)) {
      signal?.throwIfAborted();
      try {
        return await attempt();
      } catch (error) {
        last = error;
      }
      await delay(waitMs);
    }
    throw new CodedError(
      "deadline_exceeded",
      `the guest agent at ${this.address} did not answer within ${timeoutMs} ms: ${String(last)}`,
    );
  }

  /** Whether the agent is locked. @throws Error when it does not answer within `timeoutMs` */
  async health(timeoutMs: number): Promise<{ locked: boolean }> {
    const answer = await this.#call("GET", "/health", undefined, timeoutMs);
    return { locked: answer.headers["x-torpor-locked"] === "1" };
  }

  /**
   * Does ahead of init what depends on no tenant and pages in the path of a command; the guest stays locked.
   *
   * @param options.hostKey of a fresh boot the one that it takes on, of others the one that it has
   * @throws CodedError `guest_unavailable`
   */
  async prepare(
    preparation: GuestPreparation,
    { timeoutMs = 15_000, hostKey }: { timeoutMs?: number; hostKey?: string } = {},
  ): Promise<void> {
    const body = JSON.stringify(preparation);
    const headers = hostKey === undefined ? {} : { "x-torpor-host-key": hostKey };
    const answer = await this.#call("POST", "/torpor/prepare", body, timeoutMs, headers);
    if (answer.status !== 200) {
      throw new CodedError(
        "guest_unavailable",
        `the guest at ${this.address} could not be prepared (HTTP ${answer.status}): ${JSON.stringify(answer.json).slice(0, 2000)}`,
      );
    }
  }

  /**
   * Runs the guest's hooks and locks it: it answers nothing but init afterwards, and all its connections are closed.
   *
   * @throws CodedError `guest_unavailable`
   */
  async freeze(hostKey: string, hookTimeoutMs: number): Promise<void> {
    const body = JSON.stringify({ hook_timeout_ms: hookTimeoutMs });
    const answer = await this.#call("POST", "/torpor/freeze", body, FREEZE_TIMEOUT_MS, {
      "x-torpor-host-key": hostKey,
    });
    this.close(); // connections of ours must not go into an image
    if (answer.status !== 200 && answer.status !== 423) {
      throw new CodedError(
        "guest_unavailable",
        `the guest at ${this.address} could not be frozen (HTTP ${answer.status}): ${JSON.stringify(answer.json).slice(0, 2000)}`,
      );
    }
  }

  /** Commands that were started through the agent and run now. @throws CodedError or a connection error */
  async runningExecs(accessToken: string): Promise<string[]> {
    const answer = await this.#call("POST", "/process.Process/List", "{}", 5000, {
      "x-access-token": accessToken,
    });
    const { processes = [] } = (answer.json ?? {}) as {
      processes?: { pid?: number; torpor?: { execId?: string } }[];
    };
    return processes.map((process) => process.torpor?.execId ?? `pid ${process.pid}`);
  }

  /**
   * Unlocks a restored guest. Fail closed: an incomplete attestation throws.
   *
   * @param redact takes what must not be told out of every text of the answer
   * @throws CodedError `guest_unavailable` with the attestation in `details`.
   */
  async init(identity: GuestIdentity, redact?: (text: string) => string): Promise<Attestation> {
    const body = { ...identity, now_unix_ns: `${BigInt(Date.now()) * 1_000_000n}` };
    // A number, not a string, is what the agent reads; 64-bit nanoseconds do not fit a JavaScript number.
    const json = JSON.stringify(body).replace(/"now_unix_ns":"(\d+)"/, '"now_unix_ns":$1');
    const timeoutMs = INIT_TIMEOUT_MS + Math.max(0, this.#upBy - performance.now());
    const { status, json: said } = await this.#call("POST", "/torpor/init", json, timeoutMs);
    const told = redact === undefined || said === undefined ? said : redactJson(said, redact);
    const parsed = attestationSchema.safeParse(told);
    if (
      status !== 200 ||
      !parsed.success ||
      !parsed.data.complete ||
      parsed.data.generation !== identity.generation
    ) {
      throw new CodedError(
        "guest_unavailable",
        `the guest at ${this.address} did not attest its new identity (HTTP ${status}): ${JSON.stringify(told).slice(0, 2000)}`,
        { details: { attestation: told } },
      );
    }
    return parsed.data;
  }

  #call(
    method: string,
    path: string,
    body: string | undefined,
    timeoutMs: number,
    headers: Record<string, string> = {},
  ): Promise<{ status: number; headers: IncomingMessage["headers"]; json: unknown }> {
    return new Promise((resolve, reject) => {
      const outgoing = request(
        {
          host: this.address,
          port: GUEST_PORT,
          method,
          path,
          agent: this.agent,
          headers:
            body === undefined
              ? headers
              : { ...headers, "content-type": "application/json", "content-length": Buffer.byteLength(body) },
        },
        (incoming) => {
          const chunks: Buffer[] = [];
          let bytes = 0;
          incoming.on("data", (chunk: Buffer) => {
            bytes += chunk.length;
            if (bytes > MAX_ANSWER_BYTES)
              outgoing.destroy(new Error(`answer above ${MAX_ANSWER_BYTES} bytes`));
            else chunks.push(chunk);
          });
          incoming.on("error", reject);
          incoming.on("end", () => {
            clearTimeout(timer);
            const text = Buffer.concat(chunks).toString("utf8");
            let json: unknown = text;
            try {
              json = text === "" ? undefined : JSON.parse(text);
            } catch {
              // an answer that is no JSON is shown as it is
            }
            resolve({ status: incoming.statusCode ?? 0, headers: incoming.headers, json });
          });
        },
      );
      const timer = setTimeout(
        () => outgoing.destroy(new Error(`no answer to ${method} ${path} within ${timeoutMs} ms`)),
        timeoutMs,
      );
      outgoing.setNoDelay(true);
      outgoing.on("error", (error) => {
        clearTimeout(timer);
        reject(error);
      });
      outgoing.end(body);
    });
  }

  /** Drops every connection to this machine. */
  close(): void {
    this.agent.destroy();
    this.portAgent.destroy();
    for (const tunnel of this.#tunnels) tunnel.destroy();
  }
}

/** A connection to the agent at an address. @throws Error when there is none within {@link TRY_MS} */
function openConnection(address: string): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = connect({ host: address, port: GUEST_PORT, noDelay: true });
    const timer = setTimeout(
      () => socket.destroy(new Error(`no connection to ${address} within ${TRY_MS} ms`)),
      TRY_MS,
    );
    const settle = (): void => {
      clearTimeout(timer);
      socket.removeAllListeners();
    };
    socket.once("connect", () => {
      settle();
      resolve(socket);
    });
    socket.once("error", (error) => {
      settle();
      reject(error);
    });
  });
}
