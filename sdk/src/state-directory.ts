import { ConfigurationError } from "./errors.ts";

/** Where an instance keeps its things when TORPOR_STATE_DIR does not say otherwise. */
const DEFAULT_STATE_DIR = "/var/lib/torpor";

/** The first API key of the instance of a state directory; for that instance alone. */
export function instanceKeyFile(stateDir: string = DEFAULT_STATE_DIR): string {
  return `${stateDir}/api-key`;
}

/**
 * Where the instance of a state directory serves, by the record its server wrote when it began to. Nothing is guessed: the
 * directory's key is to reach no other program.
 * @throws ConfigurationError when there is no record, or this runtime cannot read it at once
 */
export function instanceUrl(stateDir: string): string {
  const record = `${stateDir}/run/server.json`;
  const refusal = (why: string, cause?: unknown): ConfigurationError =>
    new ConfigurationError(
      `TORPOR_STATE_DIR is ${stateDir}, but where its instance serves is not known: ${why}. Start it with \`torpor up\`, or set TORPOR_URL and TORPOR_API_KEY_FILE`,
      { code: "configuration", cause },
    );
  const readText = textReader();
  if (readText === undefined) throw refusal(`this runtime cannot read ${record}`);
  let value: unknown;
  try {
    value = JSON.parse(readText(record));
  } catch (cause) {
    throw refusal(`${record} cannot be read (${reasonOf(cause)})`, cause);
  }
  const url: unknown = typeof value === "object" && value !== null && "url" in value ? value.url : undefined;
  if (typeof url !== "string") throw refusal(`${record} names no URL`);
  return url;
}

/** Reads files synchronously, as options are resolved; without an import, which bundles for the browser would follow. */
function textReader(): ((path: string) => string) | undefined {
  const process: unknown = Reflect.get(globalThis, "process");
  if (typeof process !== "object" || process === null || !("getBuiltinModule" in process)) return undefined;
  const { getBuiltinModule } = process;
  if (typeof getBuiltinModule !== "function") return undefined;
  const fileSystem = getBuiltinModule("node:fs") as typeof import("node:fs") | undefined;
  return fileSystem && ((path) => fileSystem.readFileSync(path, "utf8"));
}

function reasonOf(cause: unknown): string {
  if (cause instanceof SyntaxError) return "it is not JSON";
  const code: unknown =
    typeof cause === "object" && cause !== null && "code" in cause ? cause.code : undefined;
  if (code === "ENOENT") return "no such file";
  if (code === "EACCES") return "permission denied: it belongs to the user who ran `torpor up`";
  return String(code ?? cause);
}
