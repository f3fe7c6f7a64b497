import { copyFileSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog } from "@torpor/base";
import { randomText } from "@torpor/protocol";
import { apiKeyPrefix, hashApiKey, newApiKey } from "../../src/auth/authenticator.ts";
import { type RunningServer, startServer } from "../../src/start-server.ts";
import { KeyStore } from "../../src/store/key-store.ts";
import { type Database, openDatabase } from "../../src/store/open-database.ts";
import { FakeHost } from "../fake-host.ts";
import type { CallOptions } from "../world.ts";
import { KillSwitch } from "./kill-switch.ts";
import { openMortal } from "./mortal-database.ts";

/** An answer, or `unknown` when its server was killed before the client could have had it. */
export interface Answer {
  status: number | "unknown";
  body: Record<string, unknown>;
}

/** Reads of the host that come by themselves: a death there is the same as none. */
const IDLE_CALL = /^GET \/v1\/(events|health)/;

/** One store, one host, and one server after another, each of which may be killed at any point. */
export class MortalWorld implements AsyncDisposable {
  readonly host: FakeHost;
  readonly directory: string;
  readonly key: string;
  life!: KillSwitch;
  server!: RunningServer;
  deaths: string[] = [];
  #database!: Database;

  private constructor(host: FakeHost, directory: string, key: string) {
    this.host = host;
    this.directory = directory;
    this.key = key;
  }

  /** @param template a migrated store that knows `key`: see {@link MortalWorld.template} */
  static async start(template: { path: string; key: string }): Promise<MortalWorld> {
    const host = await FakeHost.start();
    host.sleepMs = 1;
    const world = new MortalWorld(host, mkdtempSync(join(tmpdir(), "torpor-model-")), template.key);
    copyFileSync(template.path, world.#path);
    await world.boot();
    return world;
  }

  /** A store to begin from, made once: its migrations take longer than most scripts. */
  static async template(directory: string): Promise<{ path: string; key: string }> {
    const path = join(directory, "template.sqlite");
    const key = newApiKey();
    const database = await openDatabase({ kind: "sqlite", path });
    await new KeyStore(database).insert({
      id: "key_model",
      account: "default",
      name: "model",
      prefix: apiKeyPrefix(key),
      hash: hashApiKey(key),
      tenant: null,
      scopes: ["admin"],
      createdAt: Date.now(),
      expiresAt: null,
    });
    await database.close(); // which empties its write-ahead log into the file
    return { path, key };
  }

  get #path(): string {
    return join(this.directory, "server.sqlite");
  }

  /** Starts the next server on what the last one left. */
  async boot(): Promise<void> {
    const life = new KillSwitch();
    const token = `token-${randomText(10)}`;
    this.host.callers.set(token, async (when, line) => {
      if (!IDLE_CALL.test(line)) life.point(`${when} ${line.replaceAll(/[a-z0-9]{20,}/g, "ID")}`);
      else if (life.dead) throw new Error("dead");
      await Promise.resolve();
    });
    this.life = life;
    this.#database = openMortal(this.#path, life);
    this.server = await startServer({
      database: this.#database,
      host: { url: this.host.url, token },
      log: silentLog,
      watch: { newbornGraceMs: 40 },
    });
  }

  /** Ends the server: as killed if it was, else as stopped. */
  async end(): Promise<void> {
    if (this.life.dead) this.deaths.push(this.life.at ?? "");
    await this.server.close();
    await this.#database.close();
  }

  async call(
    method: string,
    path: string,
    json?: unknown,
    headers: Record<string, string> = {},
  ): Promise<Answer> {
    const { life } = this;
    try {
      const response = await this.fetch(method, path, { json, headers });
      const text = await response.text();
      if (life.dead) return { status: "unknown", body: {} };
      return { status: response.status, body: text === "" ? {} : (JSON.parse(text) as Answer["body"]) };
    } catch {
      return { status: "unknown", body: {} };
    }
  }

  async fetch(
    method: string,
    path: string,
    { json, headers = {}, signal }: CallOptions = {},
  ): Promise<Response> {
    return await fetch(`${this.server.url}${path}`, {
      method,
      headers: {
        authorization: `Bearer ${this.key}`,
        ...(json === undefined ? {} : { "content-type": "application/json" }),
        ...headers,
      },
      ...(json === undefined ? {} : { body: JSON.stringify(json) }),
      ...(signal === undefined ? {} : { signal }),
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.end();
    await this.host.close();
    rmSync(this.directory, { recursive: true, force: true });
  }
}
