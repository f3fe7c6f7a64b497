import { Accounts } from "./accounts.ts";
import { ApiKeys } from "./api-keys.ts";
import { processEnvironment, resolveConnection, type TorporOptions } from "./connection-options.ts";
import { type AccountEventOptions, EventStream } from "./event-stream.ts";
import { Ledger } from "./ledger.ts";
import { Sandbox } from "./sandbox.ts";
import { SandboxCollection } from "./sandbox-collection.ts";
import { Snapshots } from "./snapshots.ts";
import { Templates } from "./templates.ts";
import { Transport } from "./transport.ts";
import { Usage } from "./usage.ts";
import { Webhooks } from "./webhooks.ts";

/** A client of one Torpor server. It holds no connections of its own: `fetch` keeps them. */
export class Torpor {
  /** The server's base URL. */
  readonly url: string;
  readonly sandboxes: SandboxCollection;
  readonly snapshots: Snapshots;
  readonly templates: Templates;
  readonly keys: ApiKeys;
  readonly ledger: Ledger;
  readonly accounts: Accounts;
  readonly usage: Usage;
  readonly webhooks: Webhooks;
  readonly #transport: Transport;

  /** @throws ConfigurationError when the URL or the key cannot be used; a missing key only at the first request */
  constructor(options: TorporOptions = {}) {
    const transport = new Transport(resolveConnection(options, processEnvironment()));
    this.#transport = transport;
    this.url = transport.url;
    this.sandboxes = new SandboxCollection(transport, (wire, isNew) => new Sandbox(transport, wire, isNew));
    this.snapshots = new Snapshots(transport);
    this.templates = new Templates(transport);
    this.keys = new ApiKeys(transport);
    this.ledger = new Ledger(transport);
    this.accounts = new Accounts(transport);
    this.usage = new Usage(transport);
    this.webhooks = new Webhooks(transport);
  }

  /** What happens to all sandboxes the key may see, from now on. Wakes nothing and counts as no activity. */
  events(options: AccountEventOptions = {}): EventStream {
    return new EventStream(this.#transport, "/v1/events", options, false);
  }
}
