export type {
  Account,
  AccountCreateOptions,
  AccountLimits,
  AccountListOptions,
  Accounts,
  Quota,
  QuotaLimits,
  SetLimitsOptions,
  TenantUsage,
} from "./accounts.ts";
export type { Advice, AdviseOptions, TakenAdvice, Workload } from "./advise.ts";
export type { ApiKey, ApiKeyCreateOptions, ApiKeyListOptions, ApiKeys } from "./api-keys.ts";
export type { BackgroundCommand } from "./background-command.ts";
export type { CallOptions, KeyedCallOptions } from "./call-options.ts";
export type { TorporOptions } from "./connection-options.ts";
export type { CodeContext, CodeContexts } from "./code-contexts.ts";
export type { CodeError, CodeExecution, CodeResult, RunCodeOptions } from "./run-code.ts";
export type { SandboxCreateOptions } from "./create-sandbox.ts";
export type { Exploration, ExploreOptions } from "./explore.ts";
export type { ForkOptions, ForkResult } from "./fork-sandbox.ts";
export type { SessionOptions } from "./open-session.ts";
export {
  AuthenticationError,
  CapacityError,
  CommandError,
  ConfigurationError,
  ConflictError,
  ConnectionError,
  EventsExpiredError,
  InvalidRequestError,
  NoSpaceError,
  NotFoundError,
  PermissionError,
  QuotaExceededError,
  RateLimitError,
  type RequestIssue,
  SandboxEndedError,
  TimeoutError,
  TorporError,
  type TorporErrorInit,
  UnavailableError,
} from "./errors.ts";
export type {
  Command,
  CommandOptions,
  ExecBytesOptions,
  ExecOptions,
  ExecStreamBytesOptions,
  ExecStreamOptions,
  ExecStreamTextOptions,
  ExecTextOptions,
} from "./exec-options.ts";
export type { AccountEventOptions, EventOptions, EventStream } from "./event-stream.ts";
export type { ExecEnd, ExecOutcome, ExecResult } from "./exec-result.ts";
export type { ExecEvent, ExecStream } from "./exec-stream.ts";
export type { FileEntry } from "./file-entry.ts";
export type { FileChange, FileWatcher } from "./file-watcher.ts";
export type {
  Budget,
  Prices,
  SetBudgetOptions,
  Usage,
  UsageGroup,
  UsageInterval,
  UsageItem,
  UsageOptions,
  UsageReport,
  UsageSums,
} from "./usage.ts";
export type { Ledger, LedgerCheckpoint, LedgerEntry, LedgerFilter, LedgerResource } from "./ledger.ts";
export { Sandbox } from "./sandbox.ts";
export type { EventType, SandboxEvent } from "./sandbox-event.ts";
export type { SandboxCollection } from "./sandbox-collection.ts";
export type {
  ArchiveOptions,
  ListOptions,
  ReadOptions,
  SandboxFiles,
  UploadArchiveOptions,
  WatchOptions,
  WriteOptions,
} from "./sandbox-files.ts";
export type { Network, NetworkPolicy, NetworkRules } from "./network-policy.ts";
export type { HibernateOptions, Lifecycle, LifecycleUpdate } from "./sandbox-lifecycle.ts";
export type { MetricsOptions, SandboxSample } from "./sandbox-sample.ts";
export type { SandboxStateInventory, StateKind, StateOptions, Survival } from "./sandbox-state.ts";
export type { Snapshot, SnapshotFilter, SnapshotOptions, Snapshots } from "./snapshots.ts";
export type { Attestation, OnExpire, OnIdle, SandboxInfo, SandboxState } from "./sandbox-info.ts";
export type { Page, PagedList, SandboxFilter } from "./sandbox-list.ts";
export type { SandboxProcess } from "./sandbox-process.ts";
export type { BuildProgress, Template, TemplateBuild, TemplateBuildOptions, Templates } from "./templates.ts";
export type {
  CreatedPreviewUrl,
  PortRequest,
  PreviewUrl,
  PreviewUrlOptions,
  SandboxPorts,
} from "./sandbox-ports.ts";
export type { TerminalOptions, TerminalRequest } from "./terminal-request.ts";
export { Torpor } from "./torpor.ts";
export type { UploadContent } from "./upload-body.ts";
export { VERSION } from "./version.ts";
export { verifyWebhook } from "./webhook-event.ts";
export type { Webhook, WebhookChanges, WebhookCreateOptions, Webhooks } from "./webhooks.ts";
export type { KeyScope } from "./wire.ts";
