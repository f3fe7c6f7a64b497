import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import type { ServerResponse } from "node:http";
import { createServer, type Server } from "node:https";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

const MANIFEST = "application/vnd.oci.image.manifest.v1+json";

/**
 * A container registry on loopback that gives out the images of one OCI layout, over TLS with a certificate of its own, to
 * whoever knows a name and a password: the reading half of the OCI distribution specification 1.0, with Basic authentication.
 */
export class ContainerRegistry {
  readonly layout: string;
  readonly caFile: string;
  /** How many blobs it has given out. */
  blobs = 0;
  readonly #directory: string;
  readonly #server: Server;

  private constructor(directory: string, server: Server) {
    this.#directory = directory;
    this.layout = join(directory, "layout");
    this.caFile = join(directory, "cert.pem");
    this.#server = server;
  }

  static async start(credentials: { username: string; password: string }): Promise<ContainerRegistry> {
    const directory = mkdtempSync(join(tmpdir(), "torpor-registry-"));
    const [cert, key] = [join(directory, "cert.pem"), join(directory, "key.pem")];
    const made = [
      "req",
      "-x509",
      "-newkey",
      "rsa:2048",
      "-nodes",
      "-days",
      "2",
      "-keyout",
      key,
      "-out",
      cert,
    ];
    const names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"];
    execFileSync("openssl", [...made, ...names], { stdio: "pipe" });
    const expected = `Basic ${Buffer.from(`${credentials.username}:${credentials.password}`).toString("base64")}`;
    const server = createServer(
      { cert: readFileSync(cert), key: readFileSync(key) },
      (incoming, outgoing) => {
        if (incoming.headers.authorization === expected) registry.#answer(incoming.url ?? "", outgoing);
        else outgoing.writeHead(401, { "www-authenticate": 'Basic realm="registry"' }).end();
      },
    );
    const registry = new ContainerRegistry(directory, server);
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    return registry;
  }

  get address(): string {
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
    rmSync(this.#directory, { recursive: true, force: true });
  }

  #answer(url: string, outgoing: ServerResponse): void {
    if (url === "/v2/") return void outgoing.writeHead(200).end("{}");
    const [, kind, reference = ""] = /^\/v2\/[a-z/]+\/(manifests|blobs)\/([\w.:-]+)$/.exec(url) ?? [];
    const digest = kind === "manifests" ? this.#digestOf(reference) : reference;
    const file = join(this.layout, "blobs", "sha256", digest.replace(/^sha256:/, ""));
    if (kind === undefined || !/^sha256:[0-9a-f]{64}$/.test(digest) || !existsSync(file))
      return void outgoing
        .writeHead(404, { "content-type": "application/json" })
        .end(JSON.stringify({ errors: [{ code: "MANIFEST_UNKNOWN", message: "manifest unknown" }] }));
    if (kind === "blobs") this.blobs += 1;
    outgoing.writeHead(200, {
      "content-type": kind === "manifests" ? MANIFEST : "application/octet-stream",
      "docker-content-digest": digest,
    });
    outgoing.end(readFileSync(file));
  }

  #digestOf(reference: string): string {
    if (reference.startsWith("sha256:")) return reference;
    const index = JSON.parse(readFileSync(join(this.layout, "index.json"), "utf8")) as {
      manifests: { digest: string; annotations?: Record<string, string> }[];
    };
    const named = index.manifests.find(
      ({ annotations }) => annotations?.["org.opencontainers.image.ref.name"] === reference,
    );
    return named?.digest ?? "";
  }
}
