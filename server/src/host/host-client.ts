import type { IncomingMessage, OutgoingHttpHeaders } from "node:http";
import type { UpgradeOutcome } from "@torpor/base";
import {
  CodedError,
  type HostEvents,
  type HostHealth,
  type ImageRequest,
  type Machine,
  type MachineSample,
  type MachineSnapshot,
  type MachineSpec,
  type MachineUpdate,
  type SnapshotDefaults,
  type Template,
} from "@torpor/protocol";
import type { HostScope, ServerScope, TenantScope } from "../auth/tenant-scope.ts";
import type { SnapshotRecord } from "../store/snapshot-store.ts";
import { type CallOptions, type HostAddress, HostConnection } from "./host-connection.ts";
import type { OwnedMachine } from "./owned-machine.ts";
import { readAll } from "./read-all.ts";

/** Largest JSON answer read into memory, bytes. */
const MAX_JSON_BYTES = 64 * 1024 * 1024;
/** A restore on a busy machine takes seconds; a create that takes longer than this is undone. */
const CREATE_TIMEOUT_MS = 120_000;
const DELETE_TIMEOUT_MS = 60_000;
/** Writing or reading an image of gigabytes on a slow disk. */
const IMAGE_TIMEOUT_MS = 300_000;
/**
 * Longer than the host's own limits of a sleep or wake without memory add up to: 10 minutes to unpack the files, 60 s to
 * boot, 75 s for the template's services, 15 s for init.
 */
const SLEEP_TIMEOUT_MS = 900_000;

/**
 * The API of one host. Failures are `CodedError`s: the host's own envelope, or `host_unavailable` when it does not answer.
 */
export class HostClient {
  readonly #connection: HostConnection;

  constructor(address: HostAddress) {
    this.#connection = new HostConnection(address);
  }

  health(signal?: AbortSignal): Promise<HostHealth> {
    return this.#json("GET", "/v1/health", { repeatable: true, headTimeoutMs: 5_000, ...withSignal(signal) });
  }

  /**
   * Tells the host that such a machine is about to be asked for, so that it gets one ready meanwhile. A hint: nothing is
   * made by it, and nobody waits for the answer.
   */
  expectMachine({ template, diskMb }: { template: string; diskMb: number }): void {
    const query = `template=${encodeURIComponent(template)}&disk_mb=${diskMb}`;
    this.#connection.call("POST", `/v1/expected?${query}`, { headTimeoutMs: 2_000 }).then(
      (answer) => answer.resume(),
      () => {}, // the create itself tells what is wrong with the host
    );
  }

  /** Makes the machine, or gives the one of this id that exists already. Resolves when it is usable. */
  putMachine(machine: OwnedMachine, spec: MachineSpec): Promise<Machine> {
    return this.#json("PUT", machinePath(machine), {
      body: jsonBody(spec),
      repeatable: true,
      headTimeoutMs: CREATE_TIMEOUT_MS,
    });
  }

  async listMachines(_scope: HostScope, signal?: AbortSignal): Promise<Machine[]> {
    const answer = await this.#json<{ machines?: Machine[] }>("GET", "/v1/machines", {
      repeatable: true,
      ...withSignal(signal),
    });
    // An unreadable list is not an empty list.
    if (!Array.isArray(answer.machines))
      throw new CodedError(
        "host_unavailable",
        `host ${this.#connection.url} answered its machine list without machines`,
      );
    return answer.machines;
  }

  /** @returns undefined when the host says that it has no such machine. */
  async findMachine(machine: OwnedMachine, signal?: AbortSignal): Promise<Machine | undefined> {
    return await unlessNotFound(
      this.#json<Machine>("GET", machinePath(machine), {
        repeatable: true,
        headTimeoutMs: 5_000,
        ...withSignal(signal),
      }),
    );
  }

  /**
   * The machine once it stands still, neither paused nor on its way to another state, or as it is after `waitMs`. Wakes
   * nothing. @returns undefined when the host says that it has no such machine.
   */
  async settledMachine(
    machine: OwnedMachine,
    waitMs: number,
    signal?: AbortSignal,
  ): Promise<Machine | undefined> {
    return await unlessNotFound(
      this.#json<Machine>("GET", `${machinePath(machine)}?settled_within_ms=${waitMs}`, {
        repeatable: true,
        headTimeoutMs: waitMs + 5_000,
        ...withSignal(signal),
      }),
    );
  }

  /** What it used between two times (Unix milliseconds), by samples, one of now included while it runs. Wakes nothing. */
  async samples(
    machine: OwnedMachine,
    { from, to }: { from: number; to: number },
    signal?: AbortSignal,
  ): Promise<MachineSample[]> {
    const path = `${machinePath(machine)}/metrics?from_unix_ms=${from}&to_unix_ms=${to}`;
    const options = { repeatable: true, ...withSignal(signal) };
    return (await this.#json<{ samples: MachineSample[] }>("GET", path, options)).samples;
  }

  updateMachine(machine: OwnedMachine, update: MachineUpdate): Promise<Machine> {
    return this.#json("PATCH", machinePath(machine), { body: jsonBody(update), repeatable: true });
  }

  /**
   * Pauses, resumes, hibernates or wakes the machine; joins one under way. Idempotent.
   *
   * @param memory whether a hibernation keeps it; default: as the machine's spec says
   */
  moveMachine(
    machine: OwnedMachine,
    verb: "pause" | "resume" | "hibernate" | "wake",
    memory?: boolean,
  ): Promise<Machine> {
    return this.#json("POST", `${machinePath(machine)}/${verb}`, {
      ...(memory === undefined ? {} : { body: jsonBody({ memory }) }),
      repeatable: true,
      headTimeoutMs: verb === "hibernate" || verb === "wake" ? SLEEP_TIMEOUT_MS : IMAGE_TIMEOUT_MS,
    });
  }

  /** Writes a snapshot; the machine goes on. The same snapshot id again gives the one that exists. */
  takeSnapshot(
    machine: OwnedMachine,
    snapshot: { id: string; name: string | null; copies: number; defaults?: SnapshotDefaults },
  ): Promise<MachineSnapshot> {
    return this.#json("POST", `${machinePath(machine)}/snapshots`, {
      body: jsonBody(snapshot),
      repeatable: true,
      headTimeoutMs: IMAGE_TIMEOUT_MS,
    });
  }

  /** Removes a snapshot's bytes. Idempotent. */
  async deleteSnapshot({ id }: SnapshotRecord): Promise<void> {
    const answer = await this.#connection.call("DELETE", `/v1/snapshots/${encodeURIComponent(id)}`, {
      repeatable: true,
      headTimeoutMs: DELETE_TIMEOUT_MS,
    });
    answer.resume();
  }

  /** Ends the machine. Idempotent. @returns undefined when the host never had it. */
  async deleteMachine(machine: OwnedMachine, reason: string): Promise<Machine | undefined> {
    const path = `${machinePath(machine)}?reason=${encodeURIComponent(reason)}`;
    return await unlessNotFound(
      this.#json<Machine>("DELETE", path, { repeatable: true, headTimeoutMs: DELETE_TIMEOUT_MS }),
    );
  }

  /** Waits up to `waitMs` for events after `after`. */
  events(_scope: HostScope, after: number, waitMs: number, signal: AbortSignal): Promise<HostEvents> {
    return this.#json("GET", `/v1/events?after=${after}&wait_ms=${waitMs}`, {
      headTimeoutMs: waitMs + 10_000,
      signal,
      repeatable: true,
    });
  }

  async listTemplates(): Promise<Template[]> {
    return (await this.#json<{ templates: Template[] }>("GET", "/v1/templates", { repeatable: true }))
      .templates;
  }

  /** NDJSON of TemplateBuildEvent, as the host writes it. */
  buildTemplate(
    _scope: ServerScope,
    name: string,
    body: Buffer,
    signal: AbortSignal,
  ): Promise<IncomingMessage> {
    return this.#connection.call("POST", `/v1/templates/${encodeURIComponent(name)}/build`, {
      body,
      headTimeoutMs: 0,
      signal,
      headers: { "content-type": "application/json" },
    });
  }

  /** NDJSON of TemplateBuildEvent: the template of a container image, for whoever `scope` is. */
  prepareImage(_scope: TenantScope, request: ImageRequest, signal: AbortSignal): Promise<IncomingMessage> {
    return this.#connection.call("POST", "/v1/images", {
      body: jsonBody(request),
      headTimeoutMs: 0,
      signal,
      headers: { "content-type": "application/json" },
    });
  }

  async deleteTemplate(_scope: ServerScope, name: string): Promise<void> {
    (
      await this.#connection.call("DELETE", `/v1/templates/${encodeURIComponent(name)}`, {
        headTimeoutMs: DELETE_TIMEOUT_MS,
      })
    ).resume();
  }

  /** Console of the machine, text. */
  logs(machine: OwnedMachine, signal: AbortSignal): Promise<IncomingMessage> {
    return this.#connection.call("GET", `${machinePath(machine)}/logs`, { signal, repeatable: true });
  }

  /** Drops the kept connections. */
  close(): void {
    this.#connection.close();
  }

  /** A request to a port of the machine's guest. @throws as every call of the host does */
  guest(
    machine: OwnedMachine,
    port: number,
    method: string,
    path: string,
    options: CallOptions = {},
  ): Promise<IncomingMessage> {
    return this.#connection.call(method, portPath(machine, port, path), options);
  }

  /** As {@link HostClient.guest}, but an answer of any status is the caller's to read. */
  openPort(
    machine: OwnedMachine,
    port: number,
    method: string,
    path: string,
    options: CallOptions = {},
  ): Promise<IncomingMessage> {
    return this.#connection.open(method, portPath(machine, port, path), options);
  }

  /** Asks a port of the machine's guest for an upgrade. An answer of any status is the caller's to read. */
  upgradePort(
    machine: OwnedMachine,
    port: number,
    method: string,
    path: string,
    options: { headers: OutgoingHttpHeaders; signal: AbortSignal },
  ): Promise<UpgradeOutcome> {
    return this.#connection.upgrade(method, portPath(machine, port, path), `port ${port}`, options);
  }

  async #json<T>(method: string, path: string, options: CallOptions): Promise<T> {
    const headers = options.body === undefined ? {} : { "content-type": "application/json" };
    const answer = await this.#connection.call(method, path, { ...options, headers });
    return JSON.parse((await readAll(answer, MAX_JSON_BYTES)).toString("utf8")) as T;
  }
}

function portPath(machine: OwnedMachine, port: number, path: string): string {
  return `${machinePath(machine)}/ports/${port}${path}`;
}

function machinePath({ id }: OwnedMachine): string {
  return `/v1/machines/${encodeURIComponent(id)}`;
}

function jsonBody(value: unknown): Buffer {
  return Buffer.from(JSON.stringify(value));
}

function withSignal(signal: AbortSignal | undefined): { signal?: AbortSignal } {
  return signal === undefined ? {} : { signal };
}

async function unlessNotFound<T>(answer: Promise<T>): Promise<T | undefined> {
  try {
    return await answer;
  } catch (error) {
    if (error instanceof CodedError && (error.code === "sandbox_not_found" || error.code === "not_found"))
      return undefined;
    throw error;
  }
}
