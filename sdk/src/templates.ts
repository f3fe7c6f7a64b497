import type { CallOptions } from "./call-options.ts";
import { answeredList } from "./answered-list.ts";
import { downloadStream } from "./download-stream.ts";
import { errorFromLine } from "./error-from-response.ts";
import { ConnectionError, NotFoundError } from "./errors.ts";
import { decodeNdjson } from "./ndjson.ts";
import { pathSegment } from "./request-path.ts";
import type { Transport } from "./transport.ts";
import type { TemplateWire } from "./wire.ts";

/** A root filesystem with a golden snapshot to restore from. */
export interface Template {
  name: string;
  /** Content hash of recipe, guest agent and driver. */
  hash: string;
  description: string;
  sizeBytes: number;
  builtAt: Date;
  /** Drivers with a golden snapshot. */
  golden: string[];
}

/** How far a build is. */
export interface BuildProgress {
  stage: string;
  label: string;
  /** Of the stage, 0 to 1. */
  fraction: number;
}

export interface TemplateBuildOptions extends CallOptions {
  /**
   * Make it from this container image instead of a recipe: `oci:DIR[:IMAGE]`, `docker-archive:FILE[:IMAGE]`,
   * `oci-archive:FILE[:IMAGE]` or a bare path, on the host's machine; else the name of an image, local or at a registry.
   */
  image?: string | undefined;
  /** Called as the build goes on; awaited. */
  onProgress?: ((progress: BuildProgress) => unknown) | undefined;
}

export interface TemplateBuild {
  template: Template;
  /** Whether it was there already. */
  cached: boolean;
}

/** `client.templates`. */
export class Templates {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Templates that can be used. */
  async list({ signal, timeoutMs }: CallOptions = {}): Promise<Template[]> {
    const answer = await this.#transport.json({ method: "GET", path: "/v1/templates", signal, timeoutMs });
    return answeredList<TemplateWire>(answer, "templates").map(templateFromWire);
  }

  /** @throws NotFoundError `template_not_found` */
  async get(name: string, { signal, timeoutMs }: CallOptions = {}): Promise<Template> {
    const answer = await this.#transport.json<TemplateWire>({
      method: "GET",
      path: templatePath(name),
      signal,
      timeoutMs,
    });
    return templateFromWire(answer);
  }

  /** Builds a template, or finds it built. Without `timeoutMs` it takes the time it takes (minutes). */
  async build(name: string, options: TemplateBuildOptions = {}): Promise<TemplateBuild> {
    const { signal, timeoutMs = 0, onProgress, image } = options;
    const from = image === undefined ? "" : `?image=${encodeURIComponent(image)}`;
    const path = `${templatePath(name)}/build${from}`;
    const accept = "application/x-ndjson";
    const open = await this.#transport.open({ method: "POST", path, accept, signal, timeoutMs });
    for await (const line of decodeNdjson(downloadStream(open, `building ${name}`, true))) {
      if (line["type"] === "progress") await onProgress?.(line as unknown as BuildProgress);
      if (line["type"] === "done") {
        return {
          template: templateFromWire(line["template"] as TemplateWire),
          cached: line["cached"] === true,
        };
      }
      if (line["type"] === "error") {
        throw errorFromLine(line);
      }
    }
    throw new ConnectionError(
      `the server stopped telling of the build of ${name}: see its log, and build again`,
      {
        code: "connection_lost",
        retryable: true,
      },
    );
  }

  /** Removes a template; sandboxes made from it live on. Returns false when there was none. */
  async remove(name: string, { signal, timeoutMs }: CallOptions = {}): Promise<boolean> {
    try {
      await this.#transport.text({ method: "DELETE", path: templatePath(name), signal, timeoutMs });
      return true;
    } catch (error) {
      if (error instanceof NotFoundError && error.code === "template_not_found") return false;
      throw error;
    }
  }
}

function templatePath(name: string): string {
  return `/v1/templates/${pathSegment("name", name)}`;
}

function templateFromWire(wire: TemplateWire): Template {
  return {
    name: wire.name,
    hash: wire.hash,
    description: wire.description,
    sizeBytes: wire.size_bytes,
    builtAt: new Date(wire.built_at),
    golden: wire.golden,
  };
}
