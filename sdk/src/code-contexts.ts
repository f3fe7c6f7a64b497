import { answeredList } from "./answered-list.ts";
import type { CallOptions } from "./call-options.ts";
import { NotFoundError } from "./errors.ts";
import { pathSegment } from "./request-path.ts";
import { requestJson } from "./request-json.ts";
import type { Transport } from "./transport.ts";
import type { CodeContextWire } from "./wire.ts";

/** A kernel with variables of its own. */
export interface CodeContext {
  id: string;
  language: string;
  /** Working directory. */
  cwd: string;
}

/** A kernel that starts under load, milliseconds. */
const START_TIMEOUT_MS = 120_000;

/** `sandbox.contexts`. `runCode` without a context uses the default one of its language. */
export class CodeContexts {
  readonly #transport: Transport;
  readonly #path: string;

  /** @internal */
  constructor(transport: Transport, path: string) {
    this.#transport = transport;
    this.#path = path;
  }

  async list({ signal, timeoutMs }: CallOptions = {}): Promise<CodeContext[]> {
    const answer = await this.#transport.json({ method: "GET", path: this.#path, signal, timeoutMs });
    return answeredList<CodeContextWire>(answer, "contexts");
  }

  /** Starts a kernel; `language` is `python` when absent. */
  create(
    options: { language?: string | undefined; cwd?: string | undefined } & CallOptions = {},
  ): Promise<CodeContext> {
    const { signal, timeoutMs = START_TIMEOUT_MS } = options;
    const json = requestJson(options, new Set(["signal", "timeoutMs"]));
    return this.#transport.json<CodeContextWire>({
      method: "POST",
      path: this.#path,
      json,
      signal,
      timeoutMs,
    });
  }

  /** Starts its kernel anew: its variables are gone. @throws NotFoundError */
  async restart(
    context: CodeContext | string,
    { signal, timeoutMs = START_TIMEOUT_MS }: CallOptions = {},
  ): Promise<void> {
    const path = `${this.#one(context)}/restart`;
    await this.#transport.text({ method: "POST", path, signal, timeoutMs });
  }

  /** Ends its kernel. Returns false when there was none. */
  async delete(context: CodeContext | string, { signal, timeoutMs }: CallOptions = {}): Promise<boolean> {
    try {
      await this.#transport.text({ method: "DELETE", path: this.#one(context), signal, timeoutMs });
      return true;
    } catch (error) {
      if (error instanceof NotFoundError && error.code !== "sandbox_not_found") return false;
      throw error;
    }
  }

  #one(context: CodeContext | string): string {
    return `${this.#path}/${pathSegment("context", typeof context === "string" ? context : context.id)}`;
  }
}
