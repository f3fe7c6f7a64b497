import { existsSync, readFileSync, rmSync } from "node:fs";
import { CodedError } from "@torpor/protocol";
import type { InstancePaths } from "./instance-paths.ts";
import { environmentOf, type ProcessIdentity } from "./process-identity.ts";
import { readInstanceFile, writeFileAtomically } from "./run-file.ts";

/** What an instance is started with, by the variable that says it. `--listen` and `--tls` are two of them. */
export type Settings = Record<string, string>;

/** Variables of host and server that are settings: not the wires between the parts, nor how a client reaches them. */
export const SETTING_NAMES = [
  "TORPOR_AGENT_TIMEOUT_SECONDS",
  "TORPOR_APT_MIRROR",
  "TORPOR_DATABASE_URL",
  "TORPOR_DISK_WATERMARK_PERCENT",
  "TORPOR_E2B_DOMAIN",
  "TORPOR_IMAGES",
  "TORPOR_IMAGE_CA_FILE",
  "TORPOR_IMAGE_MAX_MB",
  "TORPOR_IMAGE_REGISTRIES",
  "TORPOR_LISTEN",
  "TORPOR_LOG_LEVEL",
  "TORPOR_MAX_LIFETIME_SECONDS",
  "TORPOR_PLATFORM",
  "TORPOR_POOL_DEMAND_SECONDS",
  "TORPOR_POOL_SHELLS",
  "TORPOR_POOL_TARGET",
  "TORPOR_PREVIEW_URL",
  "TORPOR_RESOLVERS",
  "TORPOR_RUNSC",
  "TORPOR_TLS",
  "TORPOR_TLS_CERT",
  "TORPOR_TLS_KEY",
  "TORPOR_TLS_LISTEN",
  "TORPOR_WEBHOOK_ALLOW",
] as const;

/** The settings in an environment; an empty variable is none. */
export function settingsIn(env: NodeJS.ProcessEnv): Settings {
  return Object.fromEntries(
    SETTING_NAMES.flatMap((name) => (env[name] ? [[name, env[name]] as [string, string]] : [])),
  );
}

/**
 * An environment with the settings of the last start where it says nothing of them. A variable that is there but empty
 * takes its setting back; a certificate that is given and one of the instance's own take the place of one another.
 *
 * @throws CodedError `internal` when the file is damaged: to start without a limit that was set is worse than not to start
 */
export function withKeptSettings(
  paths: Pick<InstancePaths, "settingsFile">,
  env: NodeJS.ProcessEnv,
): NodeJS.ProcessEnv {
  const kept = readKeptSettings(paths);
  if (env["TORPOR_TLS"]) for (const name of ["TORPOR_TLS_CERT", "TORPOR_TLS_KEY"]) delete kept[name];
  if (env["TORPOR_TLS_CERT"] || env["TORPOR_TLS_KEY"]) delete kept["TORPOR_TLS"];
  return { ...kept, ...env };
}

/** The settings of the last start; none when there was none, or when they were reset. @throws as {@link withKeptSettings} */
export function readKeptSettings({ settingsFile }: Pick<InstancePaths, "settingsFile">): Settings {
  let text: string;
  try {
    text = readFileSync(settingsFile, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return {};
    throw error;
  }
  try {
    const value = JSON.parse(text) as unknown;
    if (typeof value !== "object" || value === null) throw new Error("it is not a JSON object");
    return settingsIn(
      Object.fromEntries(Object.entries(value).filter(([, setting]) => typeof setting === "string")),
    );
  } catch (error) {
    throw new CodedError(
      "internal",
      `the settings of the last start, ${settingsFile}, cannot be read: ${error instanceof Error ? error.message : String(error)}. Correct the file, or start with 'torpor up --reset-settings' and the settings that are wanted`,
      { cause: error },
    );
  }
}

/** Keeps the settings for the next start, for root's eyes alone: the URL of a database may have a password in it. */
export function keepSettings(
  { settingsFile }: Pick<InstancePaths, "settingsFile">,
  settings: Settings,
): void {
  if (Object.keys(settings).length === 0) rmSync(settingsFile, { force: true });
  else writeFileAtomically(settingsFile, `${JSON.stringify(settings, null, 2)}\n`, 0o600);
}

/**
 * Keeps those of an instance that serves and keeps none, since an older build started it: from its supervisor's environment,
 * and from what it says of its address and TLS, which may have been options.
 */
export function keepSettingsOfOlderBuild(
  paths: Pick<InstancePaths, "settingsFile" | "instanceFile">,
  supervisor: ProcessIdentity,
): void {
  const serves = readInstanceFile(paths.instanceFile);
  if (existsSync(paths.settingsFile) || serves === null) return;
  keepSettings(
    paths,
    settingsIn({
      ...environmentOf(supervisor),
      TORPOR_LISTEN: serves.listen,
      TORPOR_TLS: serves.authority_file === null ? "" : "local",
    }),
  );
}

/** The settings as everybody may see them: of a URL neither user, password nor query. */
export function shownSettings(settings: Settings): Settings {
  return Object.fromEntries(
    Object.entries(settings).map(([name, value]) => [name, value.includes("://") ? bareUrl(value) : value]),
  );
}

function bareUrl(value: string): string {
  if (!URL.canParse(value)) return "(set)";
  const { protocol, host, pathname } = new URL(value);
  return `${protocol}//${host}${pathname}`;
}
