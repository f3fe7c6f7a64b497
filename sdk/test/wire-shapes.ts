/**
 * Fails to compile when this client's copies of the wire's shapes differ from the protocol's.
 * The client takes no code of other packages, so that it has no dependencies.
 */
import type * as protocol from "@torpor/protocol";
import type * as sdk from "@torpor/sdk";
import type * as advice from "../src/advice-wire.ts";
import type * as wire from "../src/wire.ts";

/** Whether each can be used as the other. */
type Same<A, B> = [A] extends [B] ? ([B] extends [A] ? true : false) : false;

/** What the client sends, as the protocol names it: every option of ours is one of theirs. */
type SnakeCase<Name extends string> = Name extends `${infer First}${infer Rest}`
  ? `${First extends Lowercase<First> ? First : `_${Lowercase<First>}`}${SnakeCase<Rest>}`
  : "";
type SentNames<Options, NotSent> = SnakeCase<Exclude<keyof Options, NotSent> & string>;
type CallNames = keyof sdk.KeyedCallOptions;

type CreateNames = keyof protocol.CreateSandboxRequest;
/** The client sets these two by itself. */
type ExecNames = Exclude<keyof protocol.ExecRequest, "cmd" | "encoding" | "background">;
type KeyNames = keyof protocol.CreateKeyRequest;

type EndLine = Omit<wire.ExecResultWire, "stdout" | "stderr" | "encoding"> & { type: "end" };

export const shapesAgree: [
  Same<wire.SandboxWire, protocol.Sandbox>,
  Same<wire.SandboxStateWire, protocol.SandboxState>,
  Same<wire.AttestationWire, protocol.Attestation>,
  Same<wire.EventWire, protocol.SandboxEvent>,
  Same<sdk.EventType, protocol.EventType>,
  Same<wire.PageWire<wire.SandboxWire>, protocol.Page<protocol.Sandbox>>,
  Same<wire.ExecResultWire, protocol.ExecResult>,
  Same<EndLine, Extract<protocol.ExecEvent, { type: "end" }>>,
  Same<wire.StartedExecWire, protocol.StartedExec>,
  Same<wire.ProcessWire, protocol.SandboxProcess>,
  Same<wire.FileEntryWire, protocol.FileEntry>,
  Same<sdk.FileChange["type"], protocol.FileChange["type"]>,
  Same<wire.TemplateWire, protocol.Template>,
  Same<wire.KeyWire, protocol.ApiKey>,
  Same<wire.WebhookWire, protocol.Webhook>,
  Same<SentNames<sdk.WebhookCreateOptions, CallNames>, keyof protocol.CreateWebhookRequest>,
  Same<SnakeCase<keyof sdk.WebhookChanges>, keyof protocol.UpdateWebhookRequest>,
  Same<wire.SandboxSampleWire, protocol.SandboxSample>,
  Same<wire.LedgerEntryWire, protocol.ShownLedgerEntry>,
  Same<wire.LedgerCheckpointWire, protocol.LedgerCheckpoint>,
  Same<wire.AccountWire, protocol.Account>,
  Same<wire.UsageWire, protocol.Usage>,
  Same<wire.UsageIntervalWire, protocol.UsageInterval>,
  Same<wire.BudgetWire, protocol.Budget>,
  Same<sdk.UsageGroup, protocol.UsageGroup>,
  Same<wire.TenantWire, protocol.TenantUsage>,
  Same<SnakeCase<keyof sdk.AccountLimits>, keyof protocol.AccountLimits>,
  Same<wire.CreatedPreviewUrlWire, protocol.CreatedPreviewUrl>,
  Same<SentNames<sdk.PreviewUrlOptions, CallNames>, keyof protocol.CreatePreviewUrlRequest>,
  Same<wire.KeyScope, protocol.Scope>,
  Same<sdk.ExecOutcome, protocol.ExecOutcome>,
  Same<SentNames<sdk.SandboxCreateOptions, CallNames>, CreateNames>,
  Same<SentNames<sdk.SessionOptions, CallNames>, keyof protocol.OpenSessionRequest>,
  Same<SentNames<sdk.LifecycleUpdate, never>, keyof protocol.UpdateLifecycleRequest>,
  Same<SentNames<sdk.ForkOptions, CallNames>, keyof protocol.ForkRequest>,
  Same<wire.LifecycleWire, protocol.Lifecycle>,
  Same<wire.CodeContextWire, protocol.CodeContext>,
  Same<sdk.CodeError, protocol.CodeError>,
  Same<wire.SnapshotWire, protocol.Snapshot>,
  Same<wire.ForkWire, protocol.Forked>,
  Same<SentNames<sdk.CommandOptions, CallNames>, ExecNames>,
  Same<SentNames<sdk.ApiKeyCreateOptions, CallNames>, KeyNames>,
  Same<advice.AdviceWire, protocol.Advice>,
  Same<wire.CreatedSandboxWire, protocol.CreatedSandbox>,
  Same<advice.WorkloadWire, protocol.Workload>,
  Same<SentNames<sdk.AdviseOptions, keyof sdk.CallOptions>, keyof protocol.AdviseRequest>,
] = [
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
  true,
];
