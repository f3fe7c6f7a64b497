import { randomBytes } from "node:crypto";
import { GUEST_PORT } from "@torpor/protocol";
import { eventually } from "../src/eventually.ts";
import { guestExecAt, type GuestExecOptions, type GuestExecResult } from "../src/guest-exec.ts";
import { HttpClient } from "../src/http-client.ts";

/** The guest agent spoken to directly, as the host does: for tests beneath the host. */
export class DirectGuest {
  /** Processes a user may have inside. */
  static readonly pidsLimit = 256;
  readonly #http: HttpClient;
  #accessToken = "";
  #hostKey = "";

  constructor(address: string) {
    this.#http = new HttpClient({ url: `http://${address}:${GUEST_PORT}` });
  }

  /** Waits for the agent at `address` and gives it an identity. @param frozenKey what {@link freeze} of its origin gave */
  static async unlock(address: string, frozenKey = ""): Promise<DirectGuest> {
    const guest = new DirectGuest(address);
    await guest.waitUntilUp();
    await guest.init(frozenKey);
    return guest;
  }

  /** Asks until the agent answers. */
  async waitUntilUp(): Promise<{ locked: boolean }> {
    const answer = await eventually(
      "the guest agent to answer",
      () => this.#http.call("/health", { timeoutMs: 300 }),
      20_000,
    );
    return { locked: answer.headers["x-torpor-locked"] === "1" };
  }

  async init(previousHostKey = ""): Promise<void> {
    this.#accessToken = randomBytes(16).toString("hex");
    this.#hostKey = randomBytes(16).toString("hex");
    const answer = await this.#http.call("/torpor/init", {
      method: "POST",
      body: {
        generation: 1,
        sandbox_id: "scontract",
        template: "base",
        hostname: "scontract",
        machine_id: randomBytes(16).toString("hex"),
        env: {},
        access_token: this.#accessToken,
        host_key: this.#hostKey,
        ...(previousHostKey === "" ? {} : { previous_host_key: previousHostKey }),
        now_unix_ns: Date.now() * 1_000_000,
        entropy_base64: randomBytes(64).toString("base64"),
        resolv_conf: "",
        default_user: "user",
        default_workdir: "/workspace",
        pids_limit: DirectGuest.pidsLimit,
        tenant: "test",
      },
    });
    if (answer.status !== 200)
      throw new Error(`init answered ${answer.status}: ${answer.body.toString("utf8")}`);
  }

  /** Locks the agent, as before every checkpoint. Answers the key that the next init must know. */
  async freeze(): Promise<string> {
    await this.#http.json("/torpor/freeze", {
      method: "POST",
      body: { hook_timeout_ms: 5000 },
      headers: { "x-torpor-host-key": this.#hostKey },
    });
    return this.#hostKey;
  }

  /** Lets go of its connections; the next call makes new ones. */
  close(): void {
    this.#http.close();
  }

  exec(command: string, options: GuestExecOptions = {}): Promise<GuestExecResult> {
    return guestExecAt(this.#http, "", command, {
      ...options,
      headers: { "x-access-token": this.#accessToken },
    });
  }

  /** Standard output of a command that must exit with 0. */
  async output(command: string, options: GuestExecOptions = {}): Promise<string> {
    const { stdout, stderr, end } = await this.exec(command, options);
    if (end.exitCode !== 0)
      throw new Error(`${command}: ${end.outcome} ${end.exitCode ?? end.signal}: ${stderr}${stdout}`);
    return stdout.trimEnd();
  }
}
