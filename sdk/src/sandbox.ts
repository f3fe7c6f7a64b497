import { type Advice, type AdviseOptions, camelCased, type TakenAdvice } from "./advise.ts";
import type { BackgroundCommand } from "./background-command.ts";
import type { CallOptions } from "./call-options.ts";
import { processEnvironment, resolveConnection, type TorporOptions } from "./connection-options.ts";
import { CodeContexts } from "./code-contexts.ts";
import { type CodeExecution, runCode, type RunCodeOptions } from "./run-code.ts";
import type { SandboxCreateOptions } from "./create-sandbox.ts";
import { type EventOptions, EventStream } from "./event-stream.ts";
import { NotFoundError, SandboxEndedError, TorporError } from "./errors.ts";
import type {
  Command,
  CommandOptions,
  ExecBytesOptions,
  ExecOptions,
  ExecStreamBytesOptions,
  ExecStreamOptions,
  ExecStreamTextOptions,
  ExecTextOptions,
} from "./exec-options.ts";
import type { ExecResult } from "./exec-result.ts";
import type { ExecStream } from "./exec-stream.ts";
import { explore, type Exploration, type ExploreOptions } from "./explore.ts";
import { type ForkOptions, type ForkResult, forkSandbox } from "./fork-sandbox.ts";
import type { SessionOptions } from "./open-session.ts";
import { pathSegment } from "./request-path.ts";
import { SandboxCommands } from "./sandbox-commands.ts";
import { SandboxFiles } from "./sandbox-files.ts";
import { type SandboxInfo, sandboxInfoFromWire } from "./sandbox-info.ts";
import { type CreatedPreviewUrl, type PreviewUrlOptions, SandboxPorts } from "./sandbox-ports.ts";
import { SandboxCollection } from "./sandbox-collection.ts";
import type { PagedList, SandboxFilter } from "./sandbox-list.ts";
import type { Network } from "./network-policy.ts";
import {
  type HibernateOptions,
  type Lifecycle,
  type LifecycleUpdate,
  SandboxLifecycle,
} from "./sandbox-lifecycle.ts";
import { type MetricsOptions, sandboxMetrics, type SandboxSample } from "./sandbox-sample.ts";
import { sandboxState, type SandboxStateInventory, type StateOptions } from "./sandbox-state.ts";
import { type Snapshot, type SnapshotOptions, takeSnapshot } from "./snapshots.ts";
import type { SandboxProcess } from "./sandbox-process.ts";
import { type TerminalOptions, type TerminalRequest, terminalRequest } from "./terminal-request.ts";
import { Transport } from "./transport.ts";
import type { CreatedSandboxWire, SandboxWire } from "./wire.ts";

/** The sandboxes of the server that the options, else the environment, name. */
function sandboxesOf(options: TorporOptions): SandboxCollection {
  const transport = new Transport(resolveConnection(options, processEnvironment()));
  return new SandboxCollection(transport, (wire, isNew) => new Sandbox(transport, wire, isNew));
}

/** A sandbox: where commands run and files live. `await using` destroys it at the end of the block. */
export class Sandbox implements AsyncDisposable {
  readonly id: string;
  /** Whether the call that gave this made it: `session` finds it or makes it. Undefined from `get` and `list`. */
  readonly isNew: boolean | undefined;
  /** What was advised when it was made with `lifecycle: "auto"`, and what of it was taken; undefined otherwise. */
  readonly advice: TakenAdvice | undefined;
  readonly files: SandboxFiles;
  /** Notebook kernels, each with variables of its own. */
  readonly contexts: CodeContexts;
  /** Programs that listen inside, for you and for visitors. */
  readonly ports: SandboxPorts;
  readonly #transport: Transport;
  readonly #path: string;
  readonly #commands: SandboxCommands;
  readonly #lifecycle: SandboxLifecycle;
  #info: SandboxInfo;

  /** @internal Made by `create`, `get` and `list`. */
  constructor(transport: Transport, wire: CreatedSandboxWire, isNew?: boolean) {
    if (typeof wire.id !== "string") {
      throw new TorporError(
        "the server's answer is no sandbox: is it Torpor, of the same version as this client?",
        {
          code: "invalid_response",
        },
      );
    }
    this.id = wire.id;
    this.isNew = isNew;
    this.advice = wire.advice && camelCased(wire.advice);
    this.#transport = transport;
    this.#path = `/v1/sandboxes/${pathSegment("id", wire.id)}`;
    this.#info = sandboxInfoFromWire(wire);
    this.#commands = new SandboxCommands(transport, this.#path);
    this.#lifecycle = new SandboxLifecycle(transport, this.#path);
    this.contexts = new CodeContexts(transport, `${this.#path}/code/contexts`);
    this.ports = new SandboxPorts(transport, this.#path);
    this.files = new SandboxFiles(transport, `${this.#path}/fs`);
  }

  /**
   * Creates a sandbox, ready to use: its first exec works. Without connection options the environment says where
   * (`TORPOR_URL`, `TORPOR_API_KEY`), else the local instance.
   * @throws InvalidRequestError naming the option; NotFoundError `template_not_found`; CapacityError; ConfigurationError
   */
  static create(options: SandboxCreateOptions & TorporOptions = {}): Promise<Sandbox> {
    return sandboxesOf(options).create(options);
  }

  /** A sandbox by its id; an ended one too, for 7 days. @throws NotFoundError `sandbox_not_found` */
  static get(id: string, options: CallOptions & TorporOptions = {}): Promise<Sandbox> {
    return sandboxesOf(options).get(id, options);
  }

  /**
   * The sandbox of that tenant and key, awake: found, or made when none lives; `isNew` says which. However many ask at once,
   * one is made. The other options matter only then: one that is found keeps its `env`, `secrets` and the rest, and those
   * given are not applied. It is persistent unless you say otherwise.
   * @throws InvalidRequestError without a tenant
   */
  static session(options: SessionOptions & TorporOptions): Promise<Sandbox> {
    return sandboxesOf(options).session(options);
  }

  /**
   * Which shape a workload should have, why, what each alternative costs a day, and at which gaps sleeping beats staying
   * awake and rebuilding beats sleeping: from times measured on the server's machine, where there are any (`facts`).
   * Makes nothing.
   */
  static advise(options: AdviseOptions & TorporOptions = {}): Promise<Advice> {
    return sandboxesOf(options).advise(options);
  }

  /** Sandboxes, the newest first, fetched page by page as they are iterated. */
  static list(filter: SandboxFilter & TorporOptions = {}): PagedList<Sandbox> {
    return sandboxesOf(filter).list(filter);
  }

  /** What the server said of it last; `refresh()` asks again. */
  get info(): SandboxInfo {
    return this.#info;
  }

  /** Asks the server. Never extends the sandbox's life. */
  async refresh({ signal, timeoutMs }: CallOptions = {}): Promise<SandboxInfo> {
    const answer = await this.#transport.json<SandboxWire>({
      method: "GET",
      path: this.#path,
      signal,
      timeoutMs,
    });
    return this.#note(answer);
  }

  #note(answer: SandboxWire): SandboxInfo {
    this.#info = sandboxInfoFromWire(answer);
    return this.#info;
  }

  /**
   * Runs a command and waits for its end. A string is run by a login shell, an array as it is. A command that fails is
   * a result, not an error, unless `check: true`. Aborting kills it. It is never run twice, whatever is retried.
   * @throws CommandError with `check: true` and any end but exit code 0
   * @throws SandboxEndedError when the sandbox had ended before the command began
   */
  exec(cmd: Command, options: ExecBytesOptions): Promise<ExecResult<Uint8Array>>;
  exec(cmd: Command, options?: ExecTextOptions): Promise<ExecResult>;
  exec(cmd: Command, options: ExecOptions = {}): Promise<ExecResult<string | Uint8Array>> {
    return this.#commands.exec(cmd, options);
  }

  /** Runs a command; its events come as they happen, its result at `.result`. */
  execStream(cmd: Command, options: ExecStreamBytesOptions): ExecStream<Uint8Array>;
  execStream(cmd: Command, options?: ExecStreamTextOptions): ExecStream;
  execStream(cmd: Command, options: ExecStreamOptions = {}): ExecStream<string | Uint8Array> {
    return this.#commands.execStream(cmd, options);
  }

  /**
   * Runs code in a notebook kernel: its variables stay for the next call, and over a hibernation. An exception in the code
   * is in `error`, not thrown. Aborting interrupts it. Needs the template `code-interpreter`, or one with its kernels.
   */
  runCode(code: string, options: RunCodeOptions = {}): Promise<CodeExecution> {
    return runCode(this.#transport, `${this.#path}/code`, code, options);
  }

  /** Starts a command that goes on without us; its `timeoutSeconds` is 86,400 (a day) when absent. */
  start(cmd: Command, options: CommandOptions = {}): Promise<BackgroundCommand> {
    return this.#commands.start(cmd, options);
  }

  /** The output of a command that runs or ended lately (5 minutes), from its start as far as it is kept, and on. */
  attach(execId: string | number, options: ExecStreamBytesOptions): ExecStream<Uint8Array>;
  attach(execId: string | number, options?: ExecStreamTextOptions): ExecStream;
  attach(execId: string | number, options: ExecStreamOptions = {}): ExecStream<string | Uint8Array> {
    return this.#commands.attach(execId, options);
  }

  /**
   * Gives a command input, at most 8 MiB at once; needs `keepStdinOpen`. Waits while it does not read. With `close`, no more
   * comes after that. @throws NotFoundError `process_not_found`; ConflictError when its standard input is not open
   */
  writeStdin(
    execId: string | number,
    data: string | Uint8Array,
    options: CallOptions & { close?: boolean | undefined } = {},
  ): Promise<void> {
    return this.#commands.writeStdin(execId, data, options);
  }

  /** Signals a command, by `execId` or pid, and all it started. Returns false when there was none. */
  kill(execId: string | number, signal = "SIGKILL", options: CallOptions = {}): Promise<boolean> {
    return this.#commands.kill(execId, signal, options);
  }

  /** What runs in it, of what was started through the API. */
  processes(options: CallOptions = {}): Promise<SandboxProcess[]> {
    return this.#commands.processes(options);
  }

  /**
   * Puts it to storage: memory, processes and files in one image, nothing left in RAM. The next work asked of it wakes it.
   * With `memory: false` its files alone, and only `wake` wakes it, by a fresh boot from them. A
   * command of `exec` that runs meanwhile is cut off (`lost`), one of `start` goes on after the wake, where the memory is kept.
   * Settles when it sleeps; a failure leaves it running. One that sleeps already stays as it is.
   *
   * @throws ConflictError when another sleep than the one asked for is under way, or it sleeps with the memory that is not
   *   to be kept
   */
  async hibernate(options: HibernateOptions = {}): Promise<SandboxInfo> {
    return this.#note(await this.#lifecycle.hibernate(options));
  }

  /** Wakes it, or resumes it. Work does so by itself, unless `autoWake` is off. */
  async wake(options: CallOptions = {}): Promise<SandboxInfo> {
    return this.#note(await this.#lifecycle.move("wake", options));
  }

  /** Stops it in RAM, at once: it uses no CPU and keeps its memory. */
  async pause(options: CallOptions = {}): Promise<SandboxInfo> {
    return this.#note(await this.#lifecycle.move("pause", options));
  }

  /** Lets it go on after `pause`. */
  async resume(options: CallOptions = {}): Promise<SandboxInfo> {
    return this.#note(await this.#lifecycle.move("resume", options));
  }

  /**
   * Makes sandboxes with the memory and files of this one, which goes on after a short pause; a command
   * of `exec` that runs meanwhile is cut off (`lost`), one of `start` goes on. They are their own: other
   * id, other random numbers; clocks, network, labels and environment are inherited.
   * @throws TorporError when none could be made; otherwise `failures` says which could not
   */
  async fork(options: ForkOptions = {}): Promise<ForkResult<Sandbox>> {
    return forkSandbox(
      this.#transport,
      this.#path,
      options,
      (wire) => new Sandbox(this.#transport, wire, true),
    );
  }

  /**
   * Tries several ways from here and keeps the best: forks itself once a candidate, runs `attempt` in each fork, which
   * returns the score, a finite number (anything else is a failed attempt), and destroys all but the one with the highest.
   * @throws TorporError when no attempt came to a score; nothing is left then
   */
  explore<Candidate>(
    candidates: readonly Candidate[],
    attempt: (sandbox: Sandbox, candidate: Candidate, index: number) => Promise<number>,
    options: ExploreOptions = {},
  ): Promise<Exploration<Sandbox, Candidate>> {
    return explore((fork) => this.fork(fork), candidates, attempt, options);
  }

  /** Keeps its memory and files of this instant, to create from with `fromSnapshot`. It goes on, as after `fork`. */
  snapshot(options: SnapshotOptions = {}): Promise<Snapshot> {
    return takeSnapshot(this.#transport, this.#path, options);
  }

  /** What state it holds, by the six kinds, and for each what would survive what. Counts as no activity. */
  state(options: StateOptions = {}): Promise<SandboxStateInventory> {
    return sandboxState(this.#transport, this.#path, options);
  }

  /** What happened and happens to it, from its create to its end, with which it is over. Counts as no activity. */
  events(options: EventOptions = {}): EventStream {
    return new EventStream(this.#transport, `${this.#path}/events`, options, true);
  }

  /** Its three clocks, and what holds it awake. Wakes and extends nothing. */
  lifecycle(options: CallOptions = {}): Promise<Lifecycle> {
    return this.#lifecycle.get(options);
  }

  /** Changes its clocks; what is left out stays. Settles when it is in force. */
  async setLifecycle(update: LifecycleUpdate, options: CallOptions = {}): Promise<SandboxInfo> {
    return this.#note(await this.#lifecycle.set(update, options));
  }

  /** Sets the deadline to `seconds` from now, sooner or later than it was. Settles when it is in force. */
  setTtl(seconds: number, options: CallOptions = {}): Promise<SandboxInfo> {
    return this.setLifecycle({ ttlSeconds: seconds }, options);
  }

  /**
   * Changes what it may reach: the whole policy anew. Settles when it is in force; connections that it forbids are cut. A
   * hibernated sandbox is not woken and wakes under it; forks and snapshots made later have it too.
   */
  async setNetwork(network: Network, options: CallOptions = {}): Promise<SandboxInfo> {
    return this.#note(await this.#lifecycle.setNetwork(network, options));
  }

  /** Makes it persistent, or ephemeral again, with the clocks of that shape. `reason` is kept for those who audit. */
  async promote(
    change: { persistent: boolean; reason: string; tenant?: string | undefined },
    options: CallOptions = {},
  ): Promise<SandboxInfo> {
    return this.#note(await this.#lifecycle.promote(change, options));
  }

  /** A URL that lets whoever has it reach a port in here: `ports.publish`. */
  previewUrl(port: number, options: PreviewUrlOptions = {}): Promise<CreatedPreviewUrl> {
    return this.ports.publish(port, options);
  }

  /**
   * What it uses over time: a sample every 5 s in which it ran, the last hour's at most, and one of now while it runs, oldest
   * first. Wakes nothing. A restart of its host begins anew.
   */
  metrics(options: MetricsOptions = {}): Promise<SandboxSample[]> {
    return sandboxMetrics(this.#transport, this.#path, options);
  }

  /** The console of the machine, its last part. */
  logs({ signal, timeoutMs }: CallOptions = {}): Promise<string> {
    const accept = "text/plain";
    return this.#transport.text({ method: "GET", path: `${this.#path}/logs`, accept, signal, timeoutMs });
  }

  /** URL and headers for a WebSocket client that wants an interactive terminal. The headers hold the API key. */
  terminal(options: TerminalOptions = {}): Promise<TerminalRequest> {
    return terminalRequest(this.#transport, this.#path, options);
  }

  /**
   * Ends the sandbox and all it holds. Idempotent. Returns true when it was destroyed at its owner's request, false
   * when it had already ended: by its TTL, by a crash, by an earlier `destroy` of this object.
   */
  async destroy({ signal, timeoutMs }: CallOptions = {}): Promise<boolean> {
    if (this.#info.state === "destroyed") return false;
    try {
      const answer = await this.#transport.json<SandboxWire>({
        method: "DELETE",
        path: this.#path,
        signal,
        timeoutMs,
      });
      this.#info = sandboxInfoFromWire(answer);
      return this.#info.reason === "user";
    } catch (error) {
      // 404: purged, or never ours; 410: ended. Either way it is gone.
      if (error instanceof SandboxEndedError) return false;
      if (error instanceof NotFoundError && error.code === "sandbox_not_found") return false;
      throw error;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.destroy();
  }
}
