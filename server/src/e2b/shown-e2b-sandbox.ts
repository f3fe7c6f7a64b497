import { z } from "zod";
import type { SandboxRecord } from "../store/sandbox-record.ts";
import type { E2bTokens } from "./e2b-tokens.ts";
import { shownNetwork } from "./network.ts";

/** E2B's clients need one; theirs says the same to all. */
const CLIENT_ID = "6532622b";
/** Level of the agent's protocol that clients are to assume. The agent tells the same (`guest/agent/agent.go`). */
export const ENVD_VERSION = "0.6.13";

const sandboxFields = {
  sandboxID: z.string(),
  templateID: z.string(),
  alias: z.string().optional(),
  clientID: z.string(),
  envdVersion: z.string(),
};

/** Answer of a create, a connect and a resume. */
export const shownSandboxSchema = z.object({
  ...sandboxFields,
  envdAccessToken: z.string(),
  trafficAccessToken: z.string().nullable(),
  domain: z.string().nullable(),
});

/** One of a list. */
export const listedSandboxSchema = z.object({
  ...sandboxFields,
  startedAt: z.string(),
  endAt: z.string(),
  cpuCount: z.number(),
  memoryMB: z.number(),
  diskSizeMB: z.number(),
  metadata: z.record(z.string(), z.string()),
  state: z.enum(["running", "paused"]),
  volumeMounts: z.array(z.unknown()),
});

/** Answer of a look-up. */
export const sandboxDetailSchema = listedSandboxSchema.extend({
  envdAccessToken: z.string(),
  domain: z.string().nullable(),
  allowInternetAccess: z.boolean().nullable(),
  network: z.object({
    allowOut: z.array(z.string()),
    denyOut: z.array(z.string()),
    allowPublicTraffic: z.boolean(),
    maskRequestHost: z.string().optional(),
  }),
  lifecycle: z.object({ autoResume: z.boolean(), onTimeout: z.enum(["kill", "pause"]) }),
});

/** What it takes to show one. */
export interface ShowParts {
  tokens: Pick<E2bTokens, "agentToken" | "trafficToken">;
  /** Domain, with port, below which ports are; null when there is none. */
  domain: string | null;
}

/** States in which a sandbox sleeps, in E2B's words. */
const PAUSED = new Set<SandboxRecord["state"]>(["paused", "hibernated"]);

/** Whether it is `paused` in E2B's words. */
export function isPaused({ state }: SandboxRecord): boolean {
  return PAUSED.has(state);
}

export function shownSandbox(
  record: SandboxRecord,
  { tokens, domain }: ShowParts,
): z.input<typeof shownSandboxSchema> {
  return {
    ...names(record),
    envdAccessToken: tokens.agentToken(record),
    trafficAccessToken: isPublic(record) ? null : tokens.trafficToken(record),
    domain,
  };
}

export function listedSandbox(record: SandboxRecord): z.input<typeof listedSandboxSchema> {
  const paused = isPaused(record);
  return {
    ...names(record),
    startedAt: new Date(record.createdAt).toISOString(),
    endAt: endAt(record, paused),
    cpuCount: record.cpu,
    memoryMB: record.memoryMb,
    diskSizeMB: record.diskMb,
    metadata: record.metadata,
    state: paused ? "paused" : "running",
    volumeMounts: [],
  };
}

export function sandboxDetail(
  record: SandboxRecord,
  { tokens, domain }: ShowParts,
): z.input<typeof sandboxDetailSchema> {
  const { allowInternetAccess, ...egress } = shownNetwork(record.network);
  const mask = record.e2b?.maskRequestHost ?? null;
  return {
    ...listedSandbox(record),
    envdAccessToken: tokens.agentToken(record),
    domain,
    allowInternetAccess,
    network: {
      ...egress,
      allowPublicTraffic: isPublic(record),
      ...(mask === null ? {} : { maskRequestHost: mask }),
    },
    lifecycle: {
      autoResume: record.autoWake,
      onTimeout: record.onExpire === "hibernate" ? "pause" : "kill",
    },
  };
}

/** Whether whoever knows its address reaches its ports. Of one that was not made through E2B's API nobody does. */
export function isPublic({ e2b }: SandboxRecord): boolean {
  return e2b?.publicTraffic === true;
}

function names(record: SandboxRecord) {
  const alias = record.e2b?.template;
  return {
    sandboxID: record.id,
    templateID: record.template,
    ...(alias === undefined ? {} : { alias }),
    clientID: CLIENT_ID,
    envdVersion: ENVD_VERSION,
  };
}

/** E2B's clients need a time: of a sandbox without an end one that is far away, of a sleeping one when it fell asleep. */
function endAt({ image, expiresAt, createdAt }: SandboxRecord, paused: boolean): string {
  if (paused && image !== null) return image.created_at;
  return new Date(expiresAt ?? createdAt + FAR_MS).toISOString();
}

const FAR_MS = 100 * 365 * 24 * 3_600 * 1_000;
