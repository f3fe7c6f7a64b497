import { join } from "node:path";
import { z } from "zod";
import { PreviewOrigin } from "./ingress/preview-origin.ts";
import type { DatabaseLocation } from "./store/open-database.ts";
import { isAddressRange } from "./webhook/target-guard.ts";

/** `uid:gid` as numbers. */
export interface Owner {
  uid: number;
  gid: number;
}

export interface ServerConfig {
  stateDir: string;
  listen: { host: string; port: number };
  hostUrl: string;
  hostToken: string;
  database: DatabaseLocation;
  /** Whom the process becomes once it has loaded and listens, before it opens its store. */
  runAs: Owner | undefined;
  /** Addresses and CIDR ranges that webhooks may name though they are not public. */
  webhookAllow: readonly string[];
  /** Below which previews are served; undefined for `http://localhost` and the port listened on. */
  previewUrl: string | undefined;
  /** Domain, with port, below which ports of sandboxes made through E2B's API are; undefined for none. */
  e2bDomain: string | undefined;
  /** Where TLS is spoken, with the PEM files of certificate and key; undefined for nowhere. */
  tls: { listen: { host: string; port: number }; certFile: string; keyFile: string } | undefined;
  /** The absolute end of every sandbox, seconds from its create; undefined for none. */
  maxLifetimeSeconds: number | undefined;
  apiKeyFile: string;
  apiKeyOwner: Owner | undefined;
  logLevel: "debug" | "info" | "warn" | "error" | "silent";
}

const owner = z
  .string()
  .regex(/^\d+:\d+$/, "must be uid:gid as numbers, e.g. 1000:1000")
  .transform((text): Owner => {
    const [uid = 0, gid = 0] = text.split(":").map(Number);
    return { uid, gid };
  });

const listen = z.string().transform((text, context) => {
  const match = /^(?:\[([^\]]+)\]|([^:]+)):(\d{1,5})$/.exec(text);
  const port = Number(match?.[3]);
  if (match === null || port > 65_535) {
    context.addIssue({
      code: "custom",
      message: "must be host:port, e.g. 127.0.0.1:7070 (port 0 picks a free one)",
    });
    return z.NEVER;
  }
  return { host: match[1] ?? match[2] ?? "", port };
});

const addressRanges = z.string().transform((text, context) => {
  const ranges = text.split(",").map((range) => range.trim());
  if (ranges.every(isAddressRange)) return ranges;
  context.addIssue({
    code: "custom",
    message: "must be addresses or CIDR ranges separated by commas, e.g. 127.0.0.1,10.0.0.0/8",
  });
  return z.NEVER;
});

const previewUrl = z.string().transform((text, context) => {
  const refusal = PreviewOrigin.refusal(text);
  if (refusal === undefined) return text;
  context.addIssue({ code: "custom", message: refusal });
  return z.NEVER;
});

const e2bDomain = z.string().transform((text, context) => {
  const refusal = text.includes("/")
    ? "must be a domain, not a URL"
    : PreviewOrigin.refusal(`https://${text}`);
  if (refusal === undefined) return text;
  context.addIssue({ code: "custom", message: `${refusal}, e.g. e2b.example.com or e2b.example.com:8443` });
  return z.NEVER;
});

const schema = z
  .object({
    TORPOR_STATE_DIR: z.string().startsWith("/", "must be an absolute path").default("/var/lib/torpor"),
    TORPOR_LISTEN: listen.default({ host: "127.0.0.1", port: 7070 }),
    TORPOR_HOST_URL: z
      .string()
      .regex(/^(unix:\/|http:\/\/)/, "must be unix:/path/to/host.sock or http://host:port")
      .optional(),
    TORPOR_HOST_TOKEN: z.string().min(1, "must be the token the host was started with"),
    TORPOR_DATABASE_URL: z
      .string()
      .regex(/^postgres(ql)?:\/\//, "must be postgres://…; leave it out for SQLite")
      .optional(),
    TORPOR_WEBHOOK_ALLOW: addressRanges.optional(),
    TORPOR_PREVIEW_URL: previewUrl.optional(),
    TORPOR_E2B_DOMAIN: e2bDomain.optional(),
    TORPOR_TLS_LISTEN: listen.default({ host: "127.0.0.1", port: 7443 }),
    TORPOR_TLS_CERT: z.string().startsWith("/", "must be an absolute path").optional(),
    TORPOR_TLS_KEY: z.string().startsWith("/", "must be an absolute path").optional(),
    TORPOR_MAX_LIFETIME_SECONDS: z.coerce
      .number({ error: "must be a whole number of seconds" })
      .int("must be a whole number of seconds")
      .min(1, "must be at least 1")
      .optional(),
    TORPOR_RUN_AS: owner.optional(),
    TORPOR_API_KEY_FILE: z.string().startsWith("/", "must be an absolute path").optional(),
    TORPOR_API_KEY_OWNER: owner.optional(),
    TORPOR_LOG_LEVEL: z.enum(["debug", "info", "warn", "error", "silent"]).default("info"),
  })
  .refine((set) => (set.TORPOR_TLS_CERT === undefined) === (set.TORPOR_TLS_KEY === undefined), {
    path: ["TORPOR_TLS_CERT"],
    message: "and TORPOR_TLS_KEY go together: set both, or neither",
  });

/** Reads the environment; an empty variable counts as unset. @throws Error that lists every problem at once. */
export function readConfig(environment: Readonly<Record<string, string | undefined>>): ServerConfig {
  const set = Object.fromEntries(
    Object.entries(environment).filter(([name, value]) => name.startsWith("TORPOR_") && value !== ""),
  );
  const parsed = schema.safeParse(set);
  if (!parsed.success) {
    const lines = parsed.error.issues.map(
      (issue) =>
        `  ${issue.path.join(".")}: ${issue.message.startsWith("Invalid input") ? "is required" : issue.message}`,
    );
    throw new Error(`the server's configuration is not usable:\n${lines.join("\n")}`);
  }
  const { data } = parsed;
  return {
    stateDir: data.TORPOR_STATE_DIR,
    listen: data.TORPOR_LISTEN,
    hostUrl: data.TORPOR_HOST_URL ?? `unix:${join(data.TORPOR_STATE_DIR, "run", "host.sock")}`,
    hostToken: data.TORPOR_HOST_TOKEN,
    database:
      data.TORPOR_DATABASE_URL === undefined
        ? { kind: "sqlite", path: join(data.TORPOR_STATE_DIR, "server", "server.sqlite") }
        : { kind: "postgres", url: data.TORPOR_DATABASE_URL },
    webhookAllow: data.TORPOR_WEBHOOK_ALLOW ?? [],
    previewUrl: data.TORPOR_PREVIEW_URL,
    e2bDomain: data.TORPOR_E2B_DOMAIN,
    tls:
      data.TORPOR_TLS_CERT === undefined || data.TORPOR_TLS_KEY === undefined
        ? undefined
        : {
            listen: data.TORPOR_TLS_LISTEN,
            certFile: data.TORPOR_TLS_CERT,
            keyFile: data.TORPOR_TLS_KEY,
          },
    maxLifetimeSeconds: data.TORPOR_MAX_LIFETIME_SECONDS,
    runAs: data.TORPOR_RUN_AS,
    apiKeyFile: data.TORPOR_API_KEY_FILE ?? join(data.TORPOR_STATE_DIR, "api-key"),
    apiKeyOwner: data.TORPOR_API_KEY_OWNER,
    logLevel: data.TORPOR_LOG_LEVEL,
  };
}
