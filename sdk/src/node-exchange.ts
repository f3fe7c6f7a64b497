import type { Agent } from "node:http";

/** No literals, so that bundlers for the browser do not look for them. */
const HTTP_MODULE: string = "node:http";
const HTTPS_MODULE: string = "node:https";

/**
 * Connections are the process's, not a client's: each `Sandbox.create` is a client of its own, and the next one finds a
 * connection open. Idle ones keep no program alive.
 */
let agent: Agent | undefined;

/**
 * A request whose body is at hand and whose answer is text: sends it and reads the whole answer, however long that takes.
 * Otherwise as `fetch`.
 */
export type Exchange = (
  url: string,
  init: { method: string; headers: Record<string, string>; body?: string | Uint8Array; signal: AbortSignal },
) => Promise<Response>;

/**
 * Requests over Node's own HTTP client, which takes 0.4 ms where Node's `fetch` takes 1.1 (Node 20), and sets no limit of
 * time where that gives up after 300 s without an answer. Undefined for other runtimes.
 */
export async function nodeExchange(url: string): Promise<Exchange | undefined> {
  if (!isNode()) return undefined;
  const request = url.startsWith("http:") ? await httpRequest() : await httpsRequest();
  type Init = Parameters<Exchange>[1];
  const attempt = (target: string, init: Init, again: boolean): Promise<Response> =>
    new Promise((resolve, reject) => {
      const { method, body, signal } = init;
      const headers: Record<string, string | number> = { ...init.headers };
      const bytes = typeof body === "string" ? new TextEncoder().encode(body) : body;
      if (bytes !== undefined) headers["content-length"] = bytes.byteLength;
      const outgoing = request(target, { method, headers });
      const onAbort = (): void => void outgoing.destroy(signal.reason as Error);
      signal.addEventListener("abort", onAbort, { once: true });
      const fail = (error: Error): void => {
        signal.removeEventListener("abort", onAbort);
        reject(error);
      };
      let answered = false;
      outgoing.on("error", (error: NodeJS.ErrnoException) => {
        // A kept connection may close just as it is used: the server has not seen the request then.
        const wasClosed = error.code === "ECONNRESET" || error.code === "EPIPE";
        if (answered || !again || !outgoing.reusedSocket || !wasClosed || signal.aborted) return fail(error);
        signal.removeEventListener("abort", onAbort);
        attempt(target, init, false).then(resolve, reject);
      });
      outgoing.on("response", (incoming) => {
        answered = true;
        let text = "";
        incoming.setEncoding("utf8");
        incoming.on("data", (chunk: string) => (text += chunk));
        incoming.on("error", fail);
        incoming.on("end", () => {
          signal.removeEventListener("abort", onAbort);
          resolve(toResponse(incoming, text));
        });
      });
      outgoing.end(bytes);
    });
  return async (target, init) => {
    init.signal.throwIfAborted();
    return attempt(target, init, true);
  };
}

type NodeRequest = typeof import("node:http").request;

async function httpRequest(): Promise<NodeRequest> {
  const http = (await import(
    /* webpackIgnore: true */ /* @vite-ignore */ HTTP_MODULE
  )) as typeof import("node:http");
  agent ??= new http.Agent({ keepAlive: true, maxFreeSockets: 64, scheduling: "lifo", noDelay: true });
  return ((target: string, options: object) => http.request(target, { ...options, agent })) as NodeRequest;
}

async function httpsRequest(): Promise<NodeRequest> {
  const https = (await import(
    /* webpackIgnore: true */ /* @vite-ignore */ HTTPS_MODULE
  )) as typeof import("node:https");
  return https.request;
}

function toResponse(
  { statusCode = 0, rawHeaders }: { statusCode?: number | undefined; rawHeaders: string[] },
  text: string,
): Response {
  const headers = new Headers();
  for (let at = 0; at + 1 < rawHeaders.length; at += 2)
    headers.append(rawHeaders[at] ?? "", rawHeaders[at + 1] ?? "");
  const hasBody = statusCode !== 204 && statusCode !== 205 && statusCode !== 304;
  return new Response(hasBody ? text : null, { status: statusCode, headers });
}

function isNode(): boolean {
  const process: unknown = Reflect.get(globalThis, "process");
  if (typeof process !== "object" || process === null) return false;
  const versions: unknown = Reflect.get(process, "versions");
  return (
    typeof versions === "object" &&
    versions !== null &&
    "node" in versions &&
    !("bun" in versions) &&
    !("deno" in versions)
  );
}
