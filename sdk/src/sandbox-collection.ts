import { type Advice, adviseOn, type AdviseOptions } from "./advise.ts";
import type { CallOptions } from "./call-options.ts";
import { createSandbox, type SandboxCreateOptions } from "./create-sandbox.ts";
import { openSession, type SessionOptions } from "./open-session.ts";
import { pathSegment } from "./request-path.ts";
import type { Sandbox } from "./sandbox.ts";
import { filterQuery, PagedList, type SandboxFilter } from "./sandbox-list.ts";
import type { Transport } from "./transport.ts";
import type { CreatedSandboxWire, PageWire, SandboxWire } from "./wire.ts";

/** `client.sandboxes`. */
export class SandboxCollection {
  readonly #transport: Transport;
  readonly #make: (wire: CreatedSandboxWire, isNew?: boolean) => Sandbox;

  /** @internal */
  constructor(transport: Transport, make: (wire: CreatedSandboxWire, isNew?: boolean) => Sandbox) {
    this.#transport = transport;
    this.#make = make;
  }

  /** As `Sandbox.create`. */
  async create(options: SandboxCreateOptions = {}): Promise<Sandbox> {
    return this.#make(await createSandbox(this.#transport, options), true);
  }

  /** As `Sandbox.session`. */
  async session(options: SessionOptions): Promise<Sandbox> {
    const { sandbox, created, advice } = await openSession(this.#transport, options);
    return this.#make({ ...sandbox, advice }, created);
  }

  /** As `Sandbox.advise`. */
  advise(options: AdviseOptions = {}): Promise<Advice> {
    return adviseOn(this.#transport, options);
  }

  /** As `Sandbox.get`. */
  async get(id: string, { signal, timeoutMs }: CallOptions = {}): Promise<Sandbox> {
    const path = `/v1/sandboxes/${pathSegment("id", id)}`;
    const answer = await this.#transport.json<SandboxWire>({ method: "GET", path, signal, timeoutMs });
    return this.#make(answer);
  }

  /** As `Sandbox.list`. */
  list(filter: SandboxFilter = {}): PagedList<Sandbox> {
    const { signal, timeoutMs } = filter;
    return new PagedList(async (cursor) => {
      const query = filterQuery(filter, cursor);
      const page = await this.#transport.json<PageWire<SandboxWire>>({
        method: "GET",
        path: "/v1/sandboxes",
        query,
        signal,
        timeoutMs,
      });
      return { items: page.items.map((wire) => this.#make(wire)), nextCursor: page.next_cursor };
    });
  }
}
