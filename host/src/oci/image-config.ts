import { CodedError } from "@torpor/protocol";
import { z } from "zod";

// Fields and their meaning: OCI image specification 1.0, config.md; Docker writes null for what is not set.
const configSchema = z.object({
  architecture: z.string(),
  os: z.string().default("linux"),
  config: z
    .object({
      User: z.string().max(256).nullish(),
      Env: z
        .array(z.string().max(128 * 1024))
        .max(1_000)
        .nullish(),
      WorkingDir: z.string().max(4096).nullish(),
    })
    .nullish(),
  rootfs: z.object({ diff_ids: z.array(z.string()).max(1_000) }),
});

// Of the manifest (OCI image specification 1.0, manifest.md) only how many layers there are: their digests are the tools' part.
const manifestSchema = z.object({ layers: z.array(z.unknown()) });

/** What an image says about itself, as far as a template takes it over. */
export interface ImageConfig {
  /** As Go calls it, such as `amd64`. */
  architecture: string;
  os: string;
  /** `user`, `uid`, either with `:group`; empty where it says nothing. */
  user: string;
  /** Empty where it says nothing. */
  workdir: string;
  env: Record<string, string>;
  /** Digests of the unpacked layers: with them the tree is known. */
  diffIds: string[];
}

const ENV_NAME = /^[A-Za-z_][A-Za-z0-9_]*$/;

/** Reads an image's configuration. Variables with names that no shell knows are left out. @throws CodedError `invalid_request` */
export function parseImageConfig(image: string, text: string): ImageConfig {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch {
    json = undefined;
  }
  const parsed = configSchema.safeParse(json);
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    throw new CodedError(
      "invalid_request",
      `image '${image}' cannot be built from: its configuration is not one of a container image (${issue?.path.join(".") || "it"}: ${issue?.message ?? "not JSON"})`,
    );
  }
  const { architecture, os, config, rootfs } = parsed.data;
  const env: Record<string, string> = {};
  for (const entry of config?.Env ?? []) {
    const equals = entry.indexOf("=");
    const name = entry.slice(0, equals);
    const value = entry.slice(equals + 1);
    if (equals > 0 && ENV_NAME.test(name) && !/[\0\n]/.test(value)) env[name] = value;
  }
  return {
    architecture,
    os,
    user: config?.User ?? "",
    workdir: config?.WorkingDir ?? "",
    env,
    diffIds: rootfs.diff_ids,
  };
}

/** Node's names of architectures that runtimes here exist for, as images have them. */
const ARCHITECTURES: Readonly<Record<string, string>> = { x64: "amd64", arm64: "arm64" };

/** This machine's architecture as images call it. */
export function imageArchitecture(): string {
  return ARCHITECTURES[process.arch] ?? process.arch;
}

/** @throws CodedError `unsupported` for an image of another machine or system */
export function requireRunnable(image: string, { architecture, os }: ImageConfig): void {
  const here = imageArchitecture();
  if (os === "linux" && architecture === here) return;
  throw new CodedError(
    "unsupported",
    `image '${image}' is for ${os}/${architecture}, and this host runs linux/${here}: nothing in it would start. Use the image's variant for linux/${here}`,
    { details: { architecture, os } },
  );
}

/**
 * A template is known by its configuration, which stands for the tree only if all of its layers were unpacked: the unpacker
 * checks each layer that the manifest lists against the configuration, and does not miss any that it leaves out.
 *
 * @throws CodedError `invalid_request` where the manifest lists fewer layers, or more, or none
 */
export function requireLayers(image: string, { diffIds }: ImageConfig, manifest: string): void {
  let json: unknown;
  try {
    json = JSON.parse(manifest);
  } catch {
    json = undefined;
  }
  const parsed = manifestSchema.safeParse(json);
  const count = parsed.success ? parsed.data.layers.length : 0;
  if (count > 0 && count === diffIds.length) return;
  throw new CodedError(
    "invalid_request",
    `image '${image}' cannot be built from: its manifest lists ${count} layers, and its configuration stands for ${diffIds.length}. Make or fetch it anew`,
  );
}
