import { randomBytes } from "node:crypto";
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, realpathSync, symlinkSync } from "node:fs";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Instance as InstanceNames, instanceNames } from "@torpor/host";
import { endInstance, type InstanceEnd, minimalHostEnv } from "./end-instance.ts";
import { HostClient } from "./host-client.ts";
import { HttpClient } from "./http-client.ts";
import { keeper } from "./keeper-client.ts";
import { Program } from "./program.ts";
import { programArgv, templateCacheDir } from "./repository.ts";

export interface InstanceOptions {
  /** Whether the server runs too. Default false. */
  server?: boolean;
  /** Machines kept waiting per template. Default 0: a test that wants a pool says so. */
  pool?: number;
  /** Empty processes kept waiting. Default 0. */
  shells?: number;
  /** Folder of built templates. Default: the shared cache, which the test run has filled. */
  templatesDir?: string;
  /** Passed to host and server beside what the harness sets. */
  env?: Record<string, string>;
}

/** A host, and a server when asked, of this checkout, running on a state directory of their own. */
export class Instance {
  readonly stateDir: string;
  /** Names of its namespaces, links, tables and cgroups. */
  readonly names: InstanceNames;
  readonly host: HostClient;
  readonly #options: InstanceOptions;
  readonly #hostToken: string;
  #hostProgram: Program | undefined;
  #serverProgram: Program | undefined;
  #api: HttpClient | undefined;

  private constructor(options: InstanceOptions) {
    this.stateDir = realpathSync(mkdtempSync(join(tmpdir(), "torpor-test-")));
    this.names = instanceNames(this.stateDir);
    this.#options = options;
    this.#hostToken = randomBytes(16).toString("hex");
    this.host = new HostClient(join(this.stateDir, "run", "host.sock"), this.#hostToken);
  }

  /**
   * Starts an instance. It ends with {@link Instance.stop}, and by itself when this process dies.
   *
   * @throws Error with the program's log when one does not start; nothing stays then
   */
  static async start(options: InstanceOptions = {}): Promise<Instance> {
    const instance = new Instance(options);
    try {
      instance.#layOut();
      keeper.watch(instance.#ending);
      await instance.startHost();
      if (options.server === true) await instance.startServer();
      return instance;
    } catch (error) {
      await instance.stop().catch(() => {});
      await instance.remove();
      throw error;
    }
  }

  #layOut(): void {
    const hostDir = join(this.stateDir, "host");
    const templates = this.#options.templatesDir ?? templateCacheDir();
    chmodSync(this.stateDir, 0o711); // as `up` makes it: a server that is not root passes through
    mkdirSync(hostDir, { mode: 0o700 });
    mkdirSync(join(this.stateDir, "logs"));
    mkdirSync(join(templates, ".cache"), { recursive: true, mode: 0o700 });
    symlinkSync(templates, join(hostDir, "templates"));
    symlinkSync(join(templates, ".cache"), join(hostDir, "cache"));
  }

  get #ending(): InstanceEnd {
    return { stateDir: this.stateDir, hostToken: this.#hostToken, hostEnv: this.#hostEnv };
  }

  get #hostEnv(): Record<string, string> {
    const { pool = 0, shells = 0, env = {} } = this.#options;
    return {
      ...minimalHostEnv(this.stateDir, this.#hostToken),
      TORPOR_POOL_TARGET: String(pool),
      TORPOR_POOL_SHELLS: String(shells),
      ...env,
    };
  }

  get #serverEnv(): Record<string, string> {
    return {
      TORPOR_STATE_DIR: this.stateDir,
      TORPOR_LISTEN: "127.0.0.1:0",
      TORPOR_HOST_TOKEN: this.#hostToken,
      TORPOR_API_KEY_FILE: join(this.stateDir, "api-key"),
      ...this.#options.env,
    };
  }

  get hostPid(): number {
    if (this.#hostProgram === undefined) throw new Error("the host of this instance is not running");
    return this.#hostProgram.pid;
  }

  get serverPid(): number {
    if (this.#serverProgram === undefined) throw new Error("the server of this instance is not running");
    return this.#serverProgram.pid;
  }

  /** Address of the public API. */
  get url(): string {
    const url = this.#serverProgram?.ready["url"];
    if (typeof url !== "string") throw new Error("the server of this instance is not running");
    return url;
  }

  /** The administrator's key, made by the server at its first start. */
  get apiKey(): string {
    return readFileSync(join(this.stateDir, "api-key"), "utf8").trim();
  }

  /** The public API with that key, as a client without an SDK sees it. */
  get api(): HttpClient {
    this.#api ??= new HttpClient({ url: this.url }, { authorization: `Bearer ${this.apiKey}` });
    return this.#api;
  }

  /** What the programs logged so far. */
  log(program: "host" | "server"): string {
    return readFileSync(join(this.stateDir, "logs", `${program}.log`), "utf8");
  }

  /** Starts the host, anew after {@link Instance.killHost}; `env` is for this start alone. */
  async startHost(env: Record<string, string> = {}): Promise<void> {
    this.#hostProgram = await Program.start({
      argv: programArgv("host"),
      env: { ...this.#hostEnv, ...env },
      logPath: join(this.stateDir, "logs", "host.log"),
    });
  }

  async startServer(): Promise<void> {
    this.#serverProgram = await Program.start({
      argv: programArgv("server"),
      env: this.#serverEnv,
      logPath: join(this.stateDir, "logs", "server.log"),
    });
  }

  /** Ends the host as it is; machines go on. Answers how it ended. */
  async killHost(signal: NodeJS.Signals = "SIGKILL"): Promise<string | undefined> {
    const ending = await this.#hostProgram?.kill(signal);
    this.#hostProgram = undefined;
    return ending;
  }

  async killServer(signal: NodeJS.Signals = "SIGKILL"): Promise<string | undefined> {
    const ending = await this.#serverProgram?.kill(signal);
    this.#serverProgram = undefined;
    this.#api?.close();
    this.#api = undefined;
    return ending;
  }

  /** Ends server, machines and host in order, and leaves the state directory for a look at it. */
  async stop(): Promise<void> {
    this.#api?.close();
    this.host.close();
    await endInstance(this.#ending);
    this.#hostProgram = undefined;
    this.#serverProgram = undefined;
  }

  /** Removes the state directory of a stopped instance. */
  async remove(): Promise<void> {
    await rm(this.stateDir, { recursive: true, force: true });
    keeper.forget(this.#ending);
  }
}
