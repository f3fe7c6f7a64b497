import { checkApiKey } from "./connection-options.ts";
import { ConfigurationError } from "./errors.ts";

/** No literal, so that bundlers for the browser do not look for it; only runtimes with files get here. */
const FILE_SYSTEM_MODULE: string = "node:fs/promises";

/** Reads a key file. @throws ConfigurationError that names the ways to give a key. */
export async function readApiKeyFile(path: string): Promise<string> {
  let text: string;
  try {
    const fileSystem = (await import(
      /* webpackIgnore: true */ /* @vite-ignore */ FILE_SYSTEM_MODULE
    )) as typeof import("node:fs/promises");
    text = await fileSystem.readFile(path, "utf8");
  } catch (cause) {
    throw new ConfigurationError(noApiKeyMessage(`${path} cannot be read (${reasonOf(cause)})`), {
      code: "configuration",
      cause,
    });
  }
  return checkApiKey(text.trim(), path);
}

/** Why there is no key, and what to do. */
export function noApiKeyMessage(why: string): string {
  return `no API key: ${why}. Pass apiKey, set TORPOR_API_KEY, or set TORPOR_API_KEY_FILE to a readable file that holds it`;
}

function reasonOf(cause: unknown): string {
  const code: unknown =
    typeof cause === "object" && cause !== null && "code" in cause ? cause.code : undefined;
  if (code === "ENOENT") return "no such file: is a local instance set up? `torpor up` makes it";
  if (code === "EACCES") return "permission denied: it belongs to the user who ran `torpor up`";
  return typeof code === "string" ? code : "this runtime has no file system";
}
