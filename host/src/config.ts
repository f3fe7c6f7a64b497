import { isIP } from "node:net";
import { isAbsolute, join } from "node:path";
import { CodedError } from "@torpor/protocol";
import { z } from "zod";

const absolutePath = z.string().refine(isAbsolute, "must be an absolute path");
const count = (most: number) => z.coerce.number().int().min(0).max(most);

const configSchema = z.object({
  TORPOR_STATE_DIR: absolutePath.default("/var/lib/torpor"),
  TORPOR_HOST_TOKEN: z.string().min(16, "must be at least 16 characters"),
  /** Static guest agent binary, as bin/quickstart builds it. */
  TORPOR_GUEST_BINARY: absolutePath,
  /** Folder of recipes. */
  TORPOR_TEMPLATES_SOURCE: absolutePath,
  /** Group that may open the socket: the server's. */
  TORPOR_SOCKET_GID: count(4_294_967_294).default(0),
  TORPOR_LOG_LEVEL: z.enum(["debug", "info", "warn", "error", "silent"]).default("info"),
  TORPOR_RUNSC: absolutePath.optional(),
  TORPOR_PLATFORM: z.enum(["systrap", "ptrace"]).default("systrap"),
  TORPOR_POOL_TARGET: count(64).default(3),
  TORPOR_POOL_SHELLS: count(64).default(2),
  /** How long as many empty processes are kept as were asked for in that time: an agent forks and wakes turn by turn. */
  TORPOR_POOL_DEMAND_SECONDS: count(3_600).default(60),
  TORPOR_APT_MIRROR: z.string().optional(),
  /** Folder of container images that templates can be built from by name; default `images` in the state directory. */
  TORPOR_IMAGES: absolutePath.optional(),
  /** Registries that are asked for images, by commas: hosts with ports; `default` for names without a registry. */
  TORPOR_IMAGE_REGISTRIES: z
    .string()
    .transform((text) => text.split(",").map((registry) => registry.trim()))
    .refine(
      (list) =>
        list.every((registry) => /^[A-Za-z0-9.-]+(:\d{1,5})?$|^\[[0-9a-fA-F:]+\](:\d{1,5})?$/.test(registry)),
      "must be hosts, with ports where need be, separated by commas; `default` for names without a registry",
    )
    .default(["default"]),
  /** PEM file of the authorities that vouch for registries, in place of the system's. */
  TORPOR_IMAGE_CA_FILE: absolutePath.optional(),
  /** The most that one image may take while it is unpacked, MiB. */
  TORPOR_IMAGE_MAX_MB: z.coerce.number().int().min(64).max(1_048_576).default(20_480),
  HTTP_PROXY: z.string().optional(),
  HTTPS_PROXY: z.string().optional(),
  NO_PROXY: z.string().optional(),
  http_proxy: z.string().optional(),
  https_proxy: z.string().optional(),
  no_proxy: z.string().optional(),
  /** Addresses of the name servers that sandboxes' questions go to, by commas; default those of /etc/resolv.conf. */
  TORPOR_RESOLVERS: z
    .string()
    .transform((text) => text.split(",").map((address) => address.trim()))
    .refine(
      (list) => list.every((address) => isIP(address) !== 0),
      "must be IP addresses, separated by commas",
    )
    .optional(),
  /** How long the agent of an idle machine may be silent before the machine is taken to have failed. */
  TORPOR_AGENT_TIMEOUT_SECONDS: z.coerce.number().min(1).max(3600).default(30),
  /** From this share of the state directory's disk on nothing is made or put to sleep. */
  TORPOR_DISK_WATERMARK_PERCENT: z.coerce.number().min(1).max(100).default(90),
});

const PROXY_VARIABLES = [
  "HTTP_PROXY",
  "HTTPS_PROXY",
  "NO_PROXY",
  "http_proxy",
  "https_proxy",
  "no_proxy",
] as const;

export interface HostConfig {
  stateDir: string;
  token: string;
  guestBinaryPath: string;
  recipesDir: string;
  socketGid: number;
  logLevel: "debug" | "info" | "warn" | "error" | "silent";
  runscPath: string | undefined;
  platform: "systrap" | "ptrace";
  poolTarget: number;
  poolShells: number;
  poolDemandMs: number;
  aptMirror: string | undefined;
  resolvers: readonly string[] | undefined;
  images: {
    dir: string;
    registries: readonly string[];
    caFile: string | undefined;
    maxMib: number;
    proxyEnv: Readonly<Record<string, string>>;
  };
  agentPatienceMs: number;
  diskWatermarkPercent: number;
}

/** Reads the configuration. An empty variable is an unset one. @throws CodedError naming every problem at once */
export function readConfig(environment: NodeJS.ProcessEnv): HostConfig {
  const set = Object.fromEntries(Object.entries(environment).filter(([, value]) => value !== ""));
  const parsed = configSchema.safeParse(set);
  if (!parsed.success) {
    const problems = parsed.error.issues.map((issue) => `${issue.path.join(".")}: ${issue.message}`);
    throw new CodedError("invalid_request", `the host's configuration is wrong:\n  ${problems.join("\n  ")}`);
  }
  const values = parsed.data;
  return {
    stateDir: values.TORPOR_STATE_DIR,
    token: values.TORPOR_HOST_TOKEN,
    guestBinaryPath: values.TORPOR_GUEST_BINARY,
    recipesDir: values.TORPOR_TEMPLATES_SOURCE,
    socketGid: values.TORPOR_SOCKET_GID,
    logLevel: values.TORPOR_LOG_LEVEL,
    runscPath: values.TORPOR_RUNSC,
    platform: values.TORPOR_PLATFORM,
    poolTarget: values.TORPOR_POOL_TARGET,
    poolShells: values.TORPOR_POOL_SHELLS,
    poolDemandMs: values.TORPOR_POOL_DEMAND_SECONDS * 1_000,
    aptMirror: values.TORPOR_APT_MIRROR,
    resolvers: values.TORPOR_RESOLVERS,
    images: {
      dir: values.TORPOR_IMAGES ?? join(values.TORPOR_STATE_DIR, "images"),
      registries: values.TORPOR_IMAGE_REGISTRIES,
      caFile: values.TORPOR_IMAGE_CA_FILE,
      maxMib: values.TORPOR_IMAGE_MAX_MB,
      proxyEnv: Object.fromEntries(
        PROXY_VARIABLES.flatMap((name) => (values[name] === undefined ? [] : [[name, values[name]]])),
      ),
    },
    agentPatienceMs: values.TORPOR_AGENT_TIMEOUT_SECONDS * 1000,
    diskWatermarkPercent: values.TORPOR_DISK_WATERMARK_PERCENT,
  };
}
