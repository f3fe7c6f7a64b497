import { constants } from "node:fs";
import { chmod, chown, mkdir, open, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { ProcessError } from "@torpor/base";
import type { CodedError } from "@torpor/protocol";
import type { BuildSpace } from "./build-space.ts";
import { runContained } from "./contained-tool.ts";
import { imageArchitecture } from "./image-config.ts";
import { explainPull, explainRead, explainUnpack } from "./image-failure.ts";
import type { ImageSource } from "./image-source.ts";

/** How a registry is spoken to, beside its name. */
export interface RegistryAccess {
  credentials: { registry: string; username: string; password: string } | null;
  /** PEM file of authorities in place of the system's. */
  caFile: string | undefined;
  /** Variables that name proxies. */
  proxyEnv: Readonly<Record<string, string>>;
}

export interface ImageToolsOptions {
  /** The image as it was asked for, for errors. */
  image: string;
  space: BuildSpace;
  access: RegistryAccess;
  signal?: AbortSignal | undefined;
}

/** A registry that does not answer a question of a few kilobytes in this time is taken to be out of reach. */
const INSPECT_TIMEOUT_MS = 60_000;
const COPY_TIMEOUT_MS = 20 * 60_000;
const UNPACK_TIMEOUT_MS = 20 * 60_000;
const NOBODY = 65_534;
/** What skopeo itself takes of a manifest or a configuration. */
const MAX_DOCUMENT_BYTES = 4 * 1024 * 1024;
const LAYOUT_IMAGE = "image";
/** The copy, as the tools see it. */
const COPY = "/work/copy/layout";

/** skopeo and umoci at work on one image in one build space. */
export class ImageTools {
  readonly #options: ImageToolsOptions;

  constructor(options: ImageToolsOptions) {
    this.#options = options;
  }

  /** The copy, once it is made. */
  get copied(): ImageSource {
    return { kind: "oci", path: COPY, image: LAYOUT_IMAGE };
  }

  /** Makes the folders that the tools write to. */
  async open(): Promise<void> {
    const { space, access } = this.#options;
    for (const name of ["tmp", "copy"]) {
      await mkdir(join(space.outside, name));
      await chmod(join(space.outside, name), 0o700);
    }
    if (access.caFile !== undefined)
      await writeFile(join(space.outside, "ca.pem"), await readFile(access.caFile));
  }

  /** The configuration of the image for this machine, byte by byte: its SHA-256 is the image's id. */
  async readConfig(source: ImageSource): Promise<string> {
    return await this.#inspect(source, ["--config", "--raw"], "config.json");
  }

  /** The manifest, or the list of manifests, that the source's name stands for. */
  async readManifest(source: ImageSource): Promise<string> {
    return await this.#inspect(source, ["--raw"], "manifest.json");
  }

  /** Copies the image for this machine, so that it is unpacked from what cannot change any more. */
  async copy(source: ImageSource): Promise<void> {
    // umoci 0.4 reads gzip alone of what layers are compressed with today.
    const flags = ["--quiet", "--dest-compress-format=gzip"];
    await this.#skopeo(source, ["copy", ...flags], [`oci:${COPY}:${LAYOUT_IMAGE}`], COPY_TIMEOUT_MS);
  }

  /** Unpacks the copy into the folder `rootfs` of the space. Digests of all layers are checked on the way. */
  async unpack(): Promise<void> {
    await runContained(
      ["umoci", "raw", "unpack", "--image", `${COPY}:${LAYOUT_IMAGE}`, "/work/rootfs"],
      this.#contained(UNPACK_TIMEOUT_MS),
    ).catch((error: unknown) => this.#fail(error, explainUnpack));
  }

  async #inspect(source: ImageSource, flags: string[], file: string): Promise<string> {
    await this.#skopeo(source, ["inspect", ...flags], [], INSPECT_TIMEOUT_MS, file);
    // Not what a tool put in its place.
    const openFlags = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;
    const opened = await open(join(this.#options.space.outside, file), openFlags);
    try {
      const stat = await opened.stat();
      if (!stat.isFile() || stat.size > MAX_DOCUMENT_BYTES)
        throw new Error(`${file} of an image is no file of at most ${MAX_DOCUMENT_BYTES} bytes`);
      return await opened.readFile("utf8");
    } finally {
      await opened.close();
    }
  }

  async #skopeo(
    source: ImageSource,
    command: string[],
    rest: string[],
    timeoutMs: number,
    outputFile?: string,
  ): Promise<void> {
    const { space } = this.#options;
    const isRemote = source.kind === "registry";
    const isCopy = !isRemote && source.path === COPY;
    const [verb = "", ...flags] = command;
    const argv: [string, ...string[]] = [
      "skopeo",
      "--tmpdir=/work/tmp",
      `--override-arch=${imageArchitecture()}`,
      "--override-os=linux",
      verb,
      ...flags,
      ...(isRemote ? await this.#logIn(verb) : []),
      isRemote
        ? `docker://${source.reference}`
        : `${source.kind}:${isCopy ? COPY : "/source"}${source.image === undefined ? "" : `:${source.image}`}`,
      ...rest,
    ];
    if (isRemote) for (const name of ["tmp", "copy"]) await chown(join(space.outside, name), NOBODY, NOBODY);
    await runContained(argv, {
      ...this.#contained(timeoutMs),
      network: isRemote,
      unprivileged: isRemote,
      ...(isRemote || isCopy ? {} : { source: source.path }),
      ...(outputFile === undefined ? {} : { outputFile }),
    }).catch((error: unknown) => this.#fail(error, isRemote ? explainPull : explainRead));
  }

  /**
   * Name and password go by a file that is nobody else's and gone with the space, never by a command line. It lies where the
   * tool itself cannot put a link in its place.
   */
  async #logIn(verb: string): Promise<string[]> {
    const { space, access } = this.#options;
    if (access.credentials === null) return [verb === "copy" ? "--src-no-creds" : "--no-creds"];
    const { registry, username, password } = access.credentials;
    const path = join(space.outside, "auth.json");
    const auth = Buffer.from(`${username}:${password}`).toString("base64");
    await writeFile(path, JSON.stringify({ auths: { [registry]: { auth } } }), { mode: 0o600 });
    await chown(path, NOBODY, NOBODY);
    return [verb === "copy" ? "--src-authfile=/work/auth.json" : "--authfile=/work/auth.json"];
  }

  #contained(timeoutMs: number) {
    const { space, access, signal } = this.#options;
    return {
      space,
      network: false,
      unprivileged: false,
      env: {
        ...access.proxyEnv,
        ...(access.caFile === undefined
          ? {}
          : { SSL_CERT_FILE: "/work/ca.pem", SSL_CERT_DIR: "/nonexistent" }),
      },
      timeoutMs,
      signal,
    };
  }

  #fail(error: unknown, explain: (image: string, said: string) => CodedError): never {
    const { image, access, signal } = this.#options;
    signal?.throwIfAborted();
    if (!(error instanceof ProcessError)) throw error;
    let said = error.stderr.trim() === "" ? error.message : error.stderr;
    if (error.message.includes("was killed after")) said = `${said}\nit took too long`;
    const password = access.credentials?.password ?? "";
    if (password !== "") said = said.replaceAll(password, "…");
    throw explain(image, said);
  }
}
