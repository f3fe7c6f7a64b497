import type { CallOptions } from "./call-options.ts";
import type { Transport } from "./transport.ts";

/** The six kinds of state. */
export type StateKind = "files" | "packages" | "caches" | "memory" | "connections" | "browser";

/** What becomes of one kind of state. */
export interface Survival {
  survives: "all" | "some" | "none";
  /** What does not, each by what a person knows it by. */
  lost: string[];
  reason: string;
}

interface Package {
  name: string;
  version: string;
}

interface Socket {
  protocol: string;
  local: string;
  remote?: string;
  state?: string;
}

/** What state a sandbox holds, and what would become of it. */
export interface SandboxStateInventory {
  sandboxId: string;
  generation: number;
  takenAt: Date;
  /** Changed since the template. */
  files: {
    changedCount: number;
    changedBytes: number;
    sample: { path: string; size: number; modifiedAt: Date }[];
    truncated: boolean;
  };
  /** Added since the template. */
  packages: { pip: Package[]; npm: Package[]; apt: Package[] };
  caches: { path: string; sizeBytes: number }[];
  memory: {
    rssBytes: number;
    processes: { pid: number; command: string; rssBytes: number; startedAt: Date }[];
    kernels: { language: string; [field: string]: unknown }[];
  };
  connections: { listening: Socket[]; loopback: Socket[]; external: Socket[] };
  browser: { profiles: { path: string; browser: string; sizeBytes: number }[] };
  /** What survives what, by kind; a fork's is that of its children. */
  forecast: Record<"pause" | "hibernate" | "fork" | "destroy", Record<StateKind, Survival>>;
}

export interface StateOptions extends CallOptions {
  /** Whether to wake a sleeping sandbox for it; otherwise it is refused (`wrong_state`). Default false. */
  wake?: boolean | undefined;
}

/** Fields that hold a time. */
const TIMES = new Set(["takenAt", "modifiedAt", "startedAt"]);

export async function sandboxState(
  transport: Transport,
  root: string,
  { wake, signal, timeoutMs }: StateOptions,
): Promise<SandboxStateInventory> {
  const path = `${root}/state`;
  const answer = await transport.json({ method: "GET", path, query: { wake }, signal, timeoutMs });
  return inOurNames(answer) as SandboxStateInventory;
}

/** The wire's names in camelCase, its times as dates. */
function inOurNames(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(inOurNames);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, entry]: [string, unknown]) => {
      const name = key.replace(/_([a-z])/g, (_match, letter: string) => letter.toUpperCase());
      return [name, TIMES.has(name) && typeof entry === "string" ? new Date(entry) : inOurNames(entry)];
    }),
  );
}
