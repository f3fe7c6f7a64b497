import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { GUEST_PORT } from "@torpor/protocol";

/** How the agent takes `init`. */
export type InitBehaviour =
  | "attests"
  | "attests another generation"
  | "attests incompletely"
  | "refuses"
  | "tells its environment"
  | "refuses and tells its environment"
  | "answers nonsense"
  | "hangs";

/** The guest agent's side of the host's protocol, on the real port of a loopback address of its own. */
export class FakeGuest {
  readonly inits: Record<string, unknown>[] = [];
  preparations = 0;
  /** Questions for its health. */
  asked = 0;
  /** Whether it leaves them unanswered. */
  silent = false;
  freezes = 0;
  locked = true;
  /** What it has changed since its template. */
  files = "";
  /** How a stream of them ends. */
  streams: "whole" | "says that it failed" | "breaks off" = "whole";
  /** The key that they came with, or that it was first prepared with, until an init. */
  #awaited: string | string[] | undefined;
  readonly #server: Server;
  readonly #behaviour: () => InitBehaviour;

  readonly #runningExecs: () => string[];

  private constructor(behaviour: () => InitBehaviour, runningExecs: () => string[]) {
    this.#behaviour = behaviour;
    this.#runningExecs = runningExecs;
    this.#server = createServer((incoming, outgoing) => {
      void bodyOf(incoming).then((body) => {
        if (incoming.url?.startsWith("/torpor/changes") === true) {
          this.#carry(incoming, body, outgoing);
          return;
        }
        const { status, json } = this.#answer(incoming, body) ?? {};
        if (status === undefined) return; // hangs
        outgoing
          .writeHead(status, this.locked ? { "x-torpor-locked": "1" } : {})
          .end(json === undefined ? "" : JSON.stringify(json));
      });
    });
  }

  static async listen(
    address: string,
    behaviour: () => InitBehaviour,
    runningExecs: () => string[] = () => [],
    locked = true,
  ): Promise<FakeGuest> {
    const guest = new FakeGuest(behaviour, runningExecs);
    guest.locked = locked;
    await new Promise<void>((resolve, reject) => {
      guest.#server.once("error", reject);
      guest.#server.listen(GUEST_PORT, address, resolve);
    });
    return guest;
  }

  #carry({ method, headers }: IncomingMessage, body: string, outgoing: ServerResponse): void {
    if (!this.locked) outgoing.writeHead(409).end();
    else if (method === "PUT") {
      this.files = body;
      this.#awaited = headers["x-torpor-host-key"];
      outgoing.end(JSON.stringify({ entries: 1, removed: 0, skipped: 0 }));
    } else {
      outgoing.writeHead(200, { trailer: "x-torpor-packed, x-torpor-failed" });
      outgoing.write(this.files);
      if (this.streams === "breaks off") outgoing.destroy();
      else if (this.streams === "whole") outgoing.addTrailers({ "x-torpor-packed": "{}" });
      else outgoing.addTrailers({ "x-torpor-failed": '"reading /a failed"' });
      outgoing.end();
    }
  }

  #answer(
    { url: path, headers }: IncomingMessage,
    body: string,
  ): { status: number; json?: unknown } | undefined {
    if (path === "/health") {
      this.asked += 1;
      return this.silent ? undefined : { status: 204 };
    }
    if (path === "/torpor/prepare") {
      this.#awaited ??= headers["x-torpor-host-key"];
      if (headers["x-torpor-host-key"] !== this.#awaited) return { status: 403 };
      this.preparations += 1;
      return { status: 200, json: {} };
    }
    if (path === "/torpor/freeze") {
      this.freezes += 1;
      this.locked = true;
      return { status: 200, json: {} };
    }
    if (path === "/process.Process/List") {
      const processes = this.#runningExecs().map((execId) => ({ torpor: { execId } }));
      return { status: 200, json: { processes } };
    }
    if (path !== "/torpor/init") return { status: 404 };
    if (!this.locked) return { status: 409, json: { code: "already_initialized" } };
    const identity = JSON.parse(body) as Record<string, unknown>;
    this.inits.push(identity);
    if (this.#awaited !== undefined && identity["previous_host_key"] !== this.#awaited)
      return { status: 403 };
    const generation = Number(identity["generation"]);
    const attestation = { generation, steps: [{ name: "entropy", outcome: "done" }], complete: true };
    switch (this.#behaviour()) {
      case "attests":
        this.locked = false;
        this.#awaited = undefined;
        return { status: 200, json: attestation };
      case "attests another generation":
        return { status: 200, json: { ...attestation, generation: generation + 1 } };
      case "attests incompletely":
        return { status: 200, json: { ...attestation, complete: false } };
      case "refuses":
        return { status: 500, json: { ...attestation, complete: false } };
      case "tells its environment":
        return { status: 200, json: telling(attestation, identity) };
      case "refuses and tells its environment":
        return { status: 500, json: telling({ ...attestation, complete: false }, identity) };
      case "answers nonsense":
        return { status: 200, json: "yes" };
      case "hangs":
        return undefined;
    }
  }

  async close(): Promise<void> {
    const closed = new Promise((resolve) => this.#server.close(resolve));
    this.#server.closeAllConnections();
    await closed;
  }
}

/** As a guest does whose hook printed its environment. */
function telling(attestation: object, { env }: Record<string, unknown>): object {
  return { ...attestation, steps: [{ name: "hooks", outcome: "done", detail: JSON.stringify(env) }] };
}

async function bodyOf(incoming: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of incoming as AsyncIterable<Buffer>) chunks.push(chunk);
  return Buffer.concat(chunks).toString("utf8");
}
