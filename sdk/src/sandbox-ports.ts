import { answeredList } from "./answered-list.ts";
import type { CallOptions, KeyedCallOptions } from "./call-options.ts";
import { NotFoundError } from "./errors.ts";
import { pathSegment } from "./request-path.ts";
import { requestJson } from "./request-json.ts";
import { dateOrNull } from "./sandbox-info.ts";
import type { Transport } from "./transport.ts";
import type { CreatedPreviewUrlWire, PreviewUrlWire } from "./wire.ts";

/** A URL that lets whoever has it reach one port of one sandbox. */
export interface PreviewUrl {
  id: string;
  sandboxId: string;
  port: number;
  /** Host name and port of the preview's own web origin. */
  host: string;
  /** Whether a visit wakes the sandbox. */
  autoWake: boolean;
  createdAt: Date;
  expiresAt: Date;
  revokedAt: Date | null;
}

/** One just made; the token is shown this once. */
export interface CreatedPreviewUrl extends PreviewUrl {
  /** To be opened in a browser. */
  url: string;
  /** For programs, which send it to `host` as `X-Torpor-Token`. */
  token: string;
}

export interface PreviewUrlOptions extends KeyedCallOptions {
  /** Counted from now; default an hour, at most 30 days. */
  expiresInSeconds?: number | undefined;
  /** Whether a visit wakes the sandbox when it sleeps. Default false. */
  autoWake?: boolean | undefined;
}

/** How a program of the owner's reaches a port: for `fetch`, and with `ws:` in place of `http:` for a WebSocket client. */
export interface PortRequest {
  url: string;
  /** They hold the API key. */
  headers: Record<string, string>;
}

const NOT_SENT: ReadonlySet<string> = new Set(["signal", "timeoutMs", "idempotencyKey"]);

/** `sandbox.ports`: programs that listen inside. They must listen on 0.0.0.0, not on 127.0.0.1. */
export class SandboxPorts {
  readonly #transport: Transport;
  readonly #path: string;

  /** @internal */
  constructor(transport: Transport, sandboxPath: string) {
    this.#transport = transport;
    this.#path = sandboxPath;
  }

  /** URL and headers for requests of your own to a port; any method and body, any path behind the URL. */
  async request(port: number, path = "/"): Promise<PortRequest> {
    const below = path.startsWith("/") ? path : `/${path}`;
    return {
      url: `${this.#transport.url}${this.#path}/ports/${port}${below}`,
      headers: await this.#transport.authorization(),
    };
  }

  /** Makes a URL that lets whoever has it reach this port, until it expires, is revoked, or the sandbox ends. */
  async publish(port: number, options: PreviewUrlOptions = {}): Promise<CreatedPreviewUrl> {
    const { signal, timeoutMs, idempotencyKey } = options;
    const wire = await this.#transport.json<CreatedPreviewUrlWire>({
      method: "POST",
      path: `${this.#path}/ports/${port}/url`,
      json: requestJson(options, NOT_SENT),
      signal,
      timeoutMs,
      idempotencyKey,
    });
    return { ...previewUrlFromWire(wire), url: wire.url, token: wire.token };
  }

  /** Preview URLs, the newest first, without their tokens. */
  async list({ signal, timeoutMs }: CallOptions = {}): Promise<PreviewUrl[]> {
    const path = `${this.#path}/urls`;
    const answer = await this.#transport.json({ method: "GET", path, signal, timeoutMs });
    return answeredList<PreviewUrlWire>(answer, "urls").map(previewUrlFromWire);
  }

  /** Ends a preview URL at once. Returns false when there was none. */
  async revoke(id: string, { signal, timeoutMs }: CallOptions = {}): Promise<boolean> {
    const path = `${this.#path}/urls/${pathSegment("id", id)}`;
    try {
      await this.#transport.text({ method: "DELETE", path, signal, timeoutMs });
      return true;
    } catch (error) {
      if (error instanceof NotFoundError && error.code === "not_found") return false;
      throw error;
    }
  }
}

function previewUrlFromWire(wire: PreviewUrlWire): PreviewUrl {
  return {
    id: wire.id,
    sandboxId: wire.sandbox_id,
    port: wire.port,
    host: wire.host,
    autoWake: wire.auto_wake,
    createdAt: new Date(wire.created_at),
    expiresAt: new Date(wire.expires_at),
    revokedAt: dateOrNull(wire.revoked_at),
  };
}
