import { ConfigurationError } from "./errors.ts";
import { instanceKeyFile, instanceUrl } from "./state-directory.ts";

/** Where a local instance serves by default (`torpor up`). */
const DEFAULT_URL = "http://127.0.0.1:7070";
/** Default `timeoutMs`. */
const DEFAULT_TIMEOUT_MS = 60_000;
/** Default `maxRetries`. */
const DEFAULT_MAX_RETRIES = 3;

/** How to reach a Torpor server. Each: the option, else the environment variable, else the default. */
export interface TorporOptions {
  /**
   * Base URL; else `TORPOR_URL`; else where the instance of `TORPOR_STATE_DIR` serves; else the local instance,
   * `http://127.0.0.1:7070`.
   */
  url?: string | undefined;
  /**
   * API key; else `TORPOR_API_KEY`; else the content of the file named by `TORPOR_API_KEY_FILE`; else, when the URL is
   * of this machine (a loopback address) or found by `TORPOR_STATE_DIR`, of `api-key` in `TORPOR_STATE_DIR`, which is `/var/lib/torpor` when absent. The
   * key's file is read on the first request.
   */
  apiKey?: string | undefined;
  /** Used for every request; default the global `fetch`, and Node's HTTP client for small requests where there is one. */
  fetch?: typeof globalThis.fetch | undefined;
  /** Default `timeoutMs` of the calls, milliseconds; 60,000 when absent. */
  timeoutMs?: number | undefined;
  /**
   * Repetitions of a request that failed in a way that passes (connection, 429, 502, 503, 504); 3 when absent. A connection
   * that is refused, as while a server is restarted, is tried eight times as often, some 10 s by default.
   */
  maxRetries?: number | undefined;
}

/** Where the API key comes from. */
type ApiKeySource = { kind: "given"; apiKey: string } | { kind: "file"; path: string } | { kind: "none" };

export interface ResolvedConnection {
  /** Without a slash at its end. */
  url: string;
  isLoopback: boolean;
  apiKeySource: ApiKeySource;
  fetch: typeof globalThis.fetch;
  /** Whether `fetch` is the caller's: then every request goes through it. */
  isFetchGiven: boolean;
  timeoutMs: number;
  maxRetries: number;
}

type Environment = Readonly<Record<string, string | undefined>>;

/**
 * Option > environment > default. An empty variable counts as absent.
 * @throws ConfigurationError when the URL cannot be used, or TORPOR_STATE_DIR is to say it and does not.
 */
export function resolveConnection(options: TorporOptions, environment: Environment): ResolvedConnection {
  const fromEnvironment = (name: string): string | undefined => environment[name]?.trim() || undefined;
  const stateDir = fromEnvironment("TORPOR_STATE_DIR");
  const given = options.url ?? fromEnvironment("TORPOR_URL");
  const recorded = given === undefined && stateDir !== undefined ? instanceUrl(stateDir) : undefined;
  const url = given ?? recorded ?? DEFAULT_URL;
  const parsed = parseUrl(url);
  const isLoopback = isLoopbackHost(parsed.hostname);
  const fetch = options.fetch ?? globalThis.fetch;
  const apiKey = options.apiKey ?? fromEnvironment("TORPOR_API_KEY");
  const keyFile =
    fromEnvironment("TORPOR_API_KEY_FILE") ??
    (isLoopback || recorded !== undefined ? instanceKeyFile(stateDir) : undefined);
  let apiKeySource: ApiKeySource = { kind: "none" };
  if (apiKey !== undefined)
    apiKeySource = { kind: "given", apiKey: checkApiKey(apiKey, "the apiKey option or TORPOR_API_KEY") };
  else if (keyFile !== undefined) apiKeySource = { kind: "file", path: keyFile };
  return {
    url: `${parsed.origin}${parsed.pathname.replace(/\/+$/, "")}`,
    isLoopback,
    apiKeySource,
    fetch: (input, init) => fetch(input, init),
    isFetchGiven: options.fetch !== undefined,
    timeoutMs: options.timeoutMs ?? DEFAULT_TIMEOUT_MS,
    maxRetries: options.maxRetries ?? DEFAULT_MAX_RETRIES,
  };
}

/** The process's environment, or nothing where there is none (browsers, workers). */
export function processEnvironment(): Environment {
  const process: unknown = Reflect.get(globalThis, "process");
  if (typeof process !== "object" || process === null || !("env" in process)) return {};
  const { env } = process;
  return typeof env === "object" && env !== null ? (env as Environment) : {};
}

/** A key as an HTTP header can carry it. @throws ConfigurationError, which does not quote the key. */
export function checkApiKey(apiKey: string, origin: string): string {
  if (/^[\x21-\x7e]+$/.test(apiKey)) return apiKey;
  const problem =
    apiKey === "" ? "is empty" : "contains spaces, line breaks or characters that are not ASCII";
  throw new ConfigurationError(`the API key from ${origin} ${problem}: pass the key as it was given out`, {
    code: "configuration",
  });
}

function parseUrl(url: string): URL {
  let parsed: URL;
  try {
    parsed = new URL(url);
  } catch (cause) {
    throw new ConfigurationError(`"${url}" is no URL: pass url or set TORPOR_URL, e.g. ${DEFAULT_URL}`, {
      code: "configuration",
      cause,
    });
  }
  if (parsed.protocol !== "http:" && parsed.protocol !== "https:") {
    throw new ConfigurationError(`the URL "${url}" is neither http: nor https:; e.g. ${DEFAULT_URL}`, {
      code: "configuration",
    });
  }
  if (parsed.username !== "" || parsed.password !== "") {
    throw new ConfigurationError(
      "the URL holds a user name or password: pass the API key as apiKey or TORPOR_API_KEY",
      {
        code: "configuration",
      },
    );
  }
  return parsed;
}

function isLoopbackHost(hostname: string): boolean {
  return hostname === "localhost" || hostname === "[::1]" || /^127\.\d+\.\d+\.\d+$/.test(hostname);
}
