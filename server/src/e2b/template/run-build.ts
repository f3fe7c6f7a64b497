import type { Clock, Log } from "@torpor/base";
import { createSandboxSchema, LIMITS, type SnapshotDefaults } from "@torpor/protocol";
import type { TenantScope } from "../../auth/tenant-scope.ts";
import { checkInput } from "../../http/check-input.ts";
import type { Sandboxes } from "../../sandbox/sandboxes.ts";
import type { Snapshots } from "../../snapshot/snapshots.ts";
import type { SandboxRecord } from "../../store/sandbox-record.ts";
import type { SnapshotRecord } from "../../store/snapshot-store.ts";
import type { BuildRecord } from "../../store/template-store.ts";
import type { TemplateChoice } from "../template-reference.ts";
import { shortImageName, templateOfImage } from "./base-image.ts";
import { BuildFailed, failureText } from "./build-failed.ts";
import type { BuildLog } from "./build-log.ts";
import { BuildSandbox, stopped } from "./build-sandbox.ts";
import type { BuildSpec } from "./build-spec.ts";
import { type BuildContext, runStep, stepTitle } from "./build-steps.ts";
import type { CopyFiles } from "./copy-files.ts";
import { imageCredentials } from "./image-credentials.ts";
import type { prepareImage } from "./prepare-image.ts";
import { untilReady } from "./until-ready.ts";

export interface BuildParts {
  sandboxes: Pick<Sandboxes, "plan" | "create" | "requireRunning" | "destroy">;
  snapshots: Pick<Snapshots, "take">;
  /** What a `fromTemplate` stands for. @throws CodedError template_not_found */
  resolve: (scope: TenantScope, reference: string) => Promise<TemplateChoice>;
  /** Has a host make a template of an image. @returns its name in a plan */
  prepareImage: (
    scope: TenantScope,
    request: Parameters<typeof prepareImage>[2],
    options: Parameters<typeof prepareImage>[3],
  ) => Promise<string>;
  files: CopyFiles;
  clock: Clock;
  log: Log;
}

export interface BuildRun {
  scope: TenantScope;
  build: BuildRecord;
  spec: BuildSpec;
  buildLog: BuildLog;
  /** Told of the sandbox that the build runs in, once there is one. */
  onSandbox: (record: SandboxRecord) => void;
  /** Its reason is a {@link BuildFailed}. */
  signal: AbortSignal;
}

/** A failure, and the step it happened in: `base`, a number from 1, or `finalize`. */
export class StepFailed extends Error {
  readonly step: string;

  constructor(step: string, message: string, cause: unknown) {
    super(message, { cause });
    this.step = step;
  }
}

/** The life of a build's sandbox, kept up while the build goes on: a server that dies leaves none for longer, seconds. */
export const BUILD_TTL_SECONDS = 300;
const MIB_FOR_STEPS = 1_024;

/**
 * Builds a template: makes a sandbox of its parent, runs the steps in there, takes a snapshot of it, and ends it.
 *
 * @returns the snapshot, and what commands in sandboxes made from it start with
 * @throws StepFailed
 */
export async function runBuild(
  run: BuildRun,
  parts: BuildParts,
): Promise<{ snapshot: SnapshotRecord; defaults: SnapshotDefaults }> {
  const { scope, spec, buildLog, signal } = run;
  const steps = spec.steps ?? [];
  let step = "base";
  let record: SandboxRecord | undefined;
  try {
    buildLog.add(step, "info", `[base] FROM ${parentName(spec)}`);
    record = await makeSandbox(run, parts);
    run.onSandbox(record);
    const target = await parts.sandboxes.requireRunning(scope, record.id);
    const sandbox = new BuildSandbox(target, signal, parts.log);
    let context = await firstContext(sandbox);
    for (const [index, one] of steps.entries()) {
      step = String(index + 1);
      const prefix = `[builder ${step}/${steps.length}]`;
      buildLog.add(step, "info", `${prefix} ${stepTitle(one)}`);
      const onLine = (stream: "stdout" | "stderr", line: string): void =>
        buildLog.add(String(index + 1), "info", `${prefix} [${stream}]: ${line}`);
      context = await runStep(one, context, { sandbox, files: parts.files, onLine });
      signal.throwIfAborted();
    }
    step = "finalize";
    const { env, user, workdir } = context;
    const command = spec.startCmd?.trim() ?? "";
    const defaults = {
      env,
      user,
      workdir,
      ...(command === "" ? {} : { start: { command, user, workdir } }),
    };
    await untilReady(sandbox, spec, context, { buildLog, clock: parts.clock, signal });
    signal.throwIfAborted();
    buildLog.add(step, "info", "[finalize] writing the template's image");
    const { snapshot } = await parts.snapshots.take(scope, record.id, {
      kind: "template",
      name: null,
      retentionSeconds: null,
      defaults,
    });
    return { snapshot, defaults };
  } catch (error) {
    if (signal.aborted) throw new StepFailed(step, stopped(signal).message, error);
    throw new StepFailed(step, failureText(error), error);
  } finally {
    if (record !== undefined) await end(record, parts);
  }
}

function parentName({ fromTemplate, fromImage }: BuildSpec): string {
  return fromTemplate ?? fromImage ?? "nothing";
}

async function makeSandbox(run: BuildRun, parts: BuildParts): Promise<SandboxRecord> {
  const { scope, build, signal } = run;
  const { image, ...choice } = await parent(run, parts);
  const { minFreeDiskMb } = build;
  const disk =
    minFreeDiskMb === null || choice.from_snapshot !== undefined
      ? {}
      : { disk_mb: Math.max(LIMITS.defaultDiskMb, minFreeDiskMb + MIB_FOR_STEPS) };
  const request = checkInput(
    createSandboxSchema,
    {
      ...choice,
      ...disk,
      tenant: build.tenant,
      name: "template build",
      ttl_seconds: BUILD_TTL_SECONDS,
      metadata: { "template-build": build.id },
      ...(build.cpu === null ? {} : { cpu: build.cpu }),
      ...(build.memoryMb === null ? {} : { memory_mb: build.memoryMb }),
    },
    "body",
  );
  const plan = await parts.sandboxes.plan(scope, request);
  if (minFreeDiskMb !== null && plan.diskMb < minFreeDiskMb)
    throw new BuildFailed(
      `${minFreeDiskMb} MB of free disk cannot be had: the parent template has a disk of ${plan.diskMb} MB, which is kept; build that one with a larger minFreeDiskMb`,
    );
  // A template of an image has a name that no request can say: images that were pulled for one are not for others.
  const made = image === undefined ? plan : { ...plan, template: image };
  return await parts.sandboxes.create(scope, made, { isAbandoned: () => signal.aborted });
}

async function parent(
  { scope, build, spec, buildLog, signal }: BuildRun,
  parts: BuildParts,
): Promise<TemplateChoice & { image?: string }> {
  const { fromTemplate, fromImage } = spec;
  if (fromTemplate != null) return await parts.resolve(scope, fromTemplate);
  if (fromImage == null)
    throw new BuildFailed("a build starts from an image or a template; name fromImage or fromTemplate");
  const template = templateOfImage(fromImage);
  if (template !== undefined) return { template };
  const credentials = imageCredentials(spec.fromImageRegistry);
  const image = await parts.prepareImage(
    scope,
    {
      image: credentials === null ? shortImageName(fromImage) : fromImage.trim(),
      credentials,
      owner: `${build.account}/${build.tenant}`,
    },
    { onStage: (label) => buildLog.add("base", "info", `[base] ${label}`), signal },
  );
  return { image };
}

// Of bash alone: an image may have no other program.
const WHO_AND_WHERE = `
printf '%s\\n' "$USER" "$PWD"
while IFS= read -r -d '' entry; do printf '%s\\0' "$entry"; done </proc/self/environ`;

/** Who a command of the parent's is by default, and where. */
async function firstContext(sandbox: BuildSandbox): Promise<BuildContext> {
  const { failure, stdout } = await sandbox.run({ command: ["/bin/bash", "-c", WHO_AND_WHERE] });
  const [user = "", workdir = "", ...rest] = stdout.split("\n");
  if (failure !== null || user === "" || !workdir.startsWith("/"))
    throw new BuildFailed(
      `the parent template does not run commands: ${failure ?? "it did not say who it is"}`,
    );
  const parentEnv: Record<string, string> = {};
  for (const entry of rest.join("\n").split("\0")) {
    const equals = entry.indexOf("=");
    if (equals > 0) parentEnv[entry.slice(0, equals)] = entry.slice(equals + 1);
  }
  return { env: {}, parentEnv, user, workdir };
}

/** Ends the sandbox; one that cannot be ended now ends by its time. */
async function end(record: SandboxRecord, { sandboxes, log }: BuildParts): Promise<void> {
  try {
    await sandboxes.destroy(record, "user", "system:template-build");
  } catch (error) {
    log.warn({ op: "template.build.end", outcome: "left to its end", sandboxId: record.id, err: error });
  }
}
