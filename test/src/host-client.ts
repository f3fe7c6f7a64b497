import {
  GUEST_PORT,
  type HostEvents,
  type HostHealth,
  type Machine,
  type MachineSnapshot,
  type MachineSpec,
  type MachineUpdate,
  newSandboxId,
  newSnapshotId,
  type Template,
  type TemplateBuildEvent,
} from "@torpor/protocol";
import { guestExec, type GuestExecOptions, type GuestExecResult } from "./guest-exec.ts";
import { type HttpAnswer, type HttpCall, HttpClient } from "./http-client.ts";

/** What a test machine is unless said otherwise: small, and with the pool's disk size, so that the pool serves it. */
const DEFAULT_SPEC: MachineSpec = {
  generation: 1,
  template: "base",
  tenant: "test",
  cpu: 1,
  memory_mb: 512,
  disk_mb: 4096,
  network: "internet",
  env: {},
  deadline_unix_ms: null,
  on_expire: "destroy",
};

/** The part of the agent's inventory that suites look at. */
export interface MachineInventory {
  files: { changed_count: number; changed_bytes: number; sample: { path: string }[] };
  packages: { pip: { name: string; version: string }[] };
  caches: { path: string; size_bytes: number }[];
  memory: { processes: { pid: number; command: string }[] };
  connections: Record<
    "listening" | "loopback" | "external",
    { local: string; remote?: string; state?: string }[]
  >;
}

/** The host's HTTP interface, as the server uses it. */
export class HostClient {
  readonly http: HttpClient;

  constructor(socket: string, token: string) {
    this.http = new HttpClient({ socket }, { authorization: `Bearer ${token}` });
  }

  call(path: string, options?: HttpCall): Promise<HttpAnswer> {
    return this.http.call(path, options);
  }

  /** Makes a machine with a fresh id. */
  create(spec: Partial<MachineSpec> = {}, id = newSandboxId()): Promise<Machine> {
    return this.http.json(`/v1/machines/${id}`, { method: "PUT", body: { ...DEFAULT_SPEC, ...spec } });
  }

  /** The same without a demand on the outcome. */
  tryCreate(spec: Partial<MachineSpec> = {}, id = newSandboxId()): Promise<HttpAnswer> {
    return this.http.call(`/v1/machines/${id}`, { method: "PUT", body: { ...DEFAULT_SPEC, ...spec } });
  }

  get(id: string): Promise<Machine> {
    return this.http.json(`/v1/machines/${id}`);
  }

  async list(): Promise<Machine[]> {
    return (await this.http.json<{ machines: Machine[] }>("/v1/machines")).machines;
  }

  end(id: string, reason = "user"): Promise<Machine> {
    return this.http.json(`/v1/machines/${id}?reason=${reason}`, { method: "DELETE" });
  }

  async endAll(): Promise<void> {
    await Promise.all((await this.list()).map((machine) => this.end(machine.id)));
  }

  setDeadline(id: string, deadlineUnixMs: number | null): Promise<Machine> {
    return this.http.json(`/v1/machines/${id}`, {
      method: "PATCH",
      body: { deadline_unix_ms: deadlineUnixMs },
    });
  }

  update(id: string, update: MachineUpdate): Promise<Machine> {
    return this.http.json(`/v1/machines/${id}`, { method: "PATCH", body: update });
  }

  pause(id: string): Promise<Machine> {
    return this.http.json(`/v1/machines/${id}/pause`, { method: "POST" });
  }

  resume(id: string): Promise<Machine> {
    return this.http.json(`/v1/machines/${id}/resume`, { method: "POST" });
  }

  /** @param memory whether it is kept. Default: as the machine's spec says */
  hibernate(id: string, memory?: boolean): Promise<Machine> {
    return this.http.json(`/v1/machines/${id}/hibernate`, {
      method: "POST",
      ...(memory === undefined ? {} : { body: { memory } }),
    });
  }

  wake(id: string): Promise<Machine> {
    return this.http.json(`/v1/machines/${id}/wake`, { method: "POST" });
  }

  /** Any of these transitions, without a demand on the outcome. */
  tryMove(id: string, verb: "pause" | "resume" | "hibernate" | "wake", body?: object): Promise<HttpAnswer> {
    return this.http.call(`/v1/machines/${id}/${verb}`, {
      method: "POST",
      ...(body === undefined ? {} : { body }),
    });
  }

  snapshot(id: string, name: string | null = null, snapshotId = newSnapshotId()): Promise<MachineSnapshot> {
    return this.http.json(`/v1/machines/${id}/snapshots`, {
      method: "POST",
      body: { id: snapshotId, name },
    });
  }

  async snapshots(): Promise<MachineSnapshot[]> {
    return (await this.http.json<{ snapshots: MachineSnapshot[] }>("/v1/snapshots")).snapshots;
  }

  removeSnapshot(id: string): Promise<HttpAnswer> {
    return this.http.call(`/v1/snapshots/${id}`, { method: "DELETE" });
  }

  /** What of the machine is state, as its agent sees it; neither wakes it nor counts as use of it. */
  state(id: string): Promise<MachineInventory> {
    return this.http.json(`/v1/machines/${id}/ports/${GUEST_PORT}/torpor/state`, {
      headers: { "x-torpor-passive": "1" },
    });
  }

  events(after: number, waitMs = 0): Promise<HostEvents> {
    return this.http.json(`/v1/events?after=${after}&wait_ms=${waitMs}`);
  }

  health(): Promise<HostHealth> {
    return this.http.json("/v1/health");
  }

  async templates(): Promise<Template[]> {
    return (await this.http.json<{ templates: Template[] }>("/v1/templates")).templates;
  }

  drain(): Promise<unknown> {
    return this.http.json("/v1/drain", { method: "POST", timeoutMs: 120_000 });
  }

  /** Builds a template, or finds it built. @throws Error with the build's own message */
  async buildTemplate(
    name: string,
    onStage: (stage: string) => void = () => {},
    image?: string,
  ): Promise<Template> {
    const incoming = await this.http.open(`/v1/templates/${name}/build`, {
      method: "POST",
      body: JSON.stringify({ image }),
    });
    let text = "";
    let stage = "";
    let last: TemplateBuildEvent | undefined;
    for await (const chunk of incoming as AsyncIterable<Buffer>) {
      text += chunk.toString("utf8");
      const lines = text.split("\n");
      text = lines.pop() ?? "";
      for (const line of lines) {
        last = JSON.parse(line) as TemplateBuildEvent;
        if (last.type === "progress" && last.stage !== stage) onStage((stage = last.stage));
      }
    }
    if (last?.type !== "done")
      throw new Error(`building ${name} answered ${incoming.statusCode}: ${JSON.stringify(last)} ${text}`);
    return last.template;
  }

  exec(id: string, command: string, options?: GuestExecOptions): Promise<GuestExecResult> {
    return guestExec(this.http, id, command, options);
  }

  /** Standard output of a command that must exit with 0. */
  async output(id: string, command: string, options?: GuestExecOptions): Promise<string> {
    const { stdout, stderr, end } = await this.exec(id, command, options);
    if (end.exitCode !== 0)
      throw new Error(
        `${command} in ${id}: ${end.outcome} ${end.exitCode ?? end.signal}: ${stderr}${stdout}`,
      );
    return stdout.trimEnd();
  }

  close(): void {
    this.http.close();
  }
}
