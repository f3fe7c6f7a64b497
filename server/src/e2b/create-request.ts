import { type CreateSandboxRequest, createSandboxSchema, LIMITS } from "@torpor/protocol";
import { z } from "zod";
import { checkInput } from "../http/check-input.ts";
import { refused } from "../sandbox/create-plan.ts";
import type { E2bSettings } from "./e2b-settings.ts";
import { notYet } from "./e2b-error.ts";
import { egressSchema, networkRequest } from "./network.ts";
import type { TemplateChoice } from "./template-reference.ts";

/** A sandbox woken by traffic lives for its timeout again, and at least this long, seconds: as E2B's do. */
const LEAST_WAKE_TTL_SECONDS = 300;

/** What a Host header can be, with `${PORT}` for the port. */
const MASK = /^(?:[A-Za-z0-9._:[\]-]|\$\{PORT\})+$/;

/** `timeout` of a body, seconds. */
export const timeoutSeconds = z
  .number({ error: "must be a whole number of seconds, e.g. 300" })
  .int("must be a whole number of seconds")
  .min(1, "must be greater than 0")
  .max(LIMITS.maxTtlSeconds, `must be at most ${LIMITS.maxTtlSeconds} seconds (30 days)`);

/** `timeout` of a body, seconds; `fallback` when it is left out. */
export function timeoutField(fallback: number) {
  return timeoutSeconds.nullish().transform((value) => value ?? fallback);
}

const text = z.record(z.string(), z.string()).nullish();

/** Body of a create. Fields that are not known are let pass, as E2B's own API does: clients add some. */
function newSandboxSchema(defaultTimeoutSeconds: number) {
  return z.object({
    templateID: z.string().min(1).max(256),
    timeout: timeoutField(defaultTimeoutSeconds),
    metadata: text,
    envVars: text,
    secure: z.boolean().nullish().describe("Sandboxes are always secured."),
    autoPause: z.boolean().nullish(),
    autoPauseMemory: z.boolean().nullish(),
    autoResume: z.object({ enabled: z.boolean() }).nullish(),
    allow_internet_access: z.boolean().nullish(),
    network: egressSchema
      .extend({
        allowPublicTraffic: z.boolean().nullish(),
        maskRequestHost: z
          .string()
          .max(256)
          .regex(MASK, "must be a host, with or without a port, e.g. localhost:${PORT}")
          .nullish(),
        httpsPorts: z.array(z.number()).nullish(),
      })
      .nullish(),
    iam: z.unknown().optional(),
    mcp: z.unknown().optional(),
    volumeMounts: z.array(z.unknown()).nullish(),
  });
}

/** Of `POST /sandboxes`, which 2.45 and earlier send. */
export const newSandboxV1 = newSandboxSchema(15);
/** Of `POST /v2/sandboxes`. */
export const newSandboxV2 = newSandboxSchema(300);
export type NewSandbox = z.output<typeof newSandboxV2>;

/** A create in our own terms, and what there are none for. @throws CodedError invalid_request, unsupported */
export function createRequest(
  body: NewSandbox,
  choice: TemplateChoice,
): { request: CreateSandboxRequest; settings: E2bSettings } {
  refuseMissing(body);
  const { network, timeout: ttlSeconds } = body;
  const autoResume = body.autoResume?.enabled === true;
  const autoPause = body.autoPause === true;
  if (body.autoPauseMemory === false && (!autoPause || autoResume))
    throw refused("autoPauseMemory", "may be false only with autoPause, and without autoResume");
  if (autoResume && !autoPause)
    throw refused("autoResume", "needs autoPause: what is killed at its timeout cannot be resumed");
  const request = checkInput(
    createSandboxSchema,
    {
      ...choice,
      ttl_seconds: ttlSeconds,
      on_expire: autoPause ? "hibernate" : "destroy",
      auto_wake: autoResume,
      hibernate_memory: body.autoPauseMemory !== false,
      metadata: body.metadata ?? {},
      env: body.envVars ?? {},
      network: networkRequest(body.allow_internet_access ?? undefined, network ?? undefined),
    },
    "body",
  );
  const settings: E2bSettings = {
    publicTraffic: network?.allowPublicTraffic !== false,
    maskRequestHost: network?.maskRequestHost ?? null,
    wakeTtlSeconds: Math.max(ttlSeconds, LEAST_WAKE_TTL_SECONDS),
    template: body.templateID,
  };
  return { request, settings };
}

function refuseMissing({ mcp, iam, volumeMounts, network }: NewSandbox): void {
  if (mcp != null) throw notYet("mcp", "there is no MCP gateway template");
  if (iam != null) throw notYet("iam", "sandboxes are given no cloud identities");
  if (volumeMounts != null && volumeMounts.length > 0)
    throw notYet("volumeMounts", "there are no volumes; a persistent sandbox keeps its files");
  if (network?.httpsPorts != null && network.httpsPorts.length > 0)
    throw notYet("network.httpsPorts", "programs in a sandbox are spoken to in plain HTTP");
}
