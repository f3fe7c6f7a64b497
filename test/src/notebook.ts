import type { IncomingMessage } from "node:http";
import type { HostClient } from "./host-client.ts";

/** Where the code server of a sandbox listens. */
const CODE_PORT = 49999;

/** One line of the code server's answer. */
export interface CodeLine {
  type: "stdout" | "stderr" | "result" | "error" | "number_of_executions" | "keepalive";
  text?: string;
  name?: string;
  value?: string;
  traceback?: string;
  execution_count?: number;
  is_main_result?: boolean;
  [field: string]: unknown;
}

export interface CodeRequest {
  context_id?: string;
  language?: string;
  env_vars?: Record<string, string>;
}

export interface CodeContext {
  id: string;
  language: string;
  cwd: string;
}

/** What an execution came to, its lines put together. */
export interface CodeOutcome {
  lines: CodeLine[];
  stdout: string;
  stderr: string;
  results: CodeLine[];
  error: CodeLine | undefined;
  /** Text of the main result. */
  text: string | undefined;
}

/** The code server of one machine, spoken to through the host's proxy. */
export class Notebook {
  readonly #host: HostClient;
  readonly #prefix: string;

  constructor(host: HostClient, machineId: string) {
    this.#host = host;
    this.#prefix = `/v1/machines/${machineId}/ports/${CODE_PORT}`;
  }

  /** Runs code to its end. @throws Error when the server does not answer 200 */
  async run(code: string, request: CodeRequest = {}): Promise<CodeOutcome> {
    const lines: CodeLine[] = [];
    for await (const line of this.stream(code, request)) lines.push(line);
    const textOf = (type: CodeLine["type"]): string =>
      lines.map((line) => (line.type === type ? (line.text ?? "") : "")).join("");
    const results = lines.filter(({ type }) => type === "result");
    return {
      lines,
      stdout: textOf("stdout"),
      stderr: textOf("stderr"),
      results,
      error: lines.find(({ type }) => type === "error"),
      text: results.find((result) => result.is_main_result)?.text,
    };
  }

  /** Text of the main result of code that must not fail. */
  async text(code: string, request: CodeRequest = {}): Promise<string> {
    const { text, error, stderr } = await this.run(code, request);
    if (error !== undefined || text === undefined)
      throw new Error(`${code}: ${error?.name} ${error?.value} ${stderr}`);
    return text;
  }

  /** Lines as they come; leaving the loop closes the connection, as a client that goes away does. */
  async *stream(code: string, request: CodeRequest = {}): AsyncGenerator<CodeLine> {
    const incoming = await this.open(code, request);
    let rest = "";
    try {
      incoming.setEncoding("utf8");
      for await (const chunk of incoming as AsyncIterable<string>) {
        const lines = (rest + chunk).split("\n");
        rest = lines.pop() ?? "";
        for (const line of lines) yield JSON.parse(line) as CodeLine;
      }
      if (rest !== "") throw new Error(`the answer ends within a line: ${rest.slice(0, 200)}`);
    } finally {
      incoming.destroy();
    }
  }

  async open(code: string, request: CodeRequest = {}): Promise<IncomingMessage> {
    const incoming = await this.#host.http.open(`${this.#prefix}/execute`, {
      method: "POST",
      body: { code, ...request },
    });
    if (incoming.statusCode !== 200) throw new Error(`execute answered ${incoming.statusCode}`);
    return incoming;
  }

  /** A call of any route, whatever it answers. */
  async call(method: string, path: string, body?: unknown): Promise<{ status: number; text: string }> {
    const answer = await this.#host.call(`${this.#prefix}${path}`, {
      method,
      ...(body === undefined ? {} : { body }),
    });
    return { status: answer.status, text: answer.body.toString("utf8") };
  }

  createContext(wanted: { cwd?: string; language?: string } = {}): Promise<CodeContext> {
    return this.#host.http.json(`${this.#prefix}/contexts`, { method: "POST", body: wanted });
  }

  contexts(): Promise<CodeContext[]> {
    return this.#host.http.json(`${this.#prefix}/contexts`);
  }
}
