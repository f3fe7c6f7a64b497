import {
  advise,
  type Advice,
  type AdviceSettings,
  type AdviseRequest,
  type CreateSandboxRequest,
  DEFAULT_TEMPLATE,
  impossible,
  LIMITS,
  type Prices,
  settingsFor,
  type TakenAdvice,
  type Workload,
} from "@torpor/protocol";
import type { TenantScope } from "../auth/tenant-scope.ts";
import { refused } from "../sandbox/create-plan.ts";
import { sandboxNotFound } from "../sandbox/sandbox-errors.ts";
import type { SandboxStore } from "../store/sandbox-store.ts";
import type { TimesHere } from "./measured-times.ts";

export interface AdvisorOptions {
  sandboxStore: Pick<SandboxStore, "find">;
  times: TimesHere;
  /** Of the caller's account. */
  prices: (scope: TenantScope) => Promise<Prices>;
}

/** Advises on shapes, from what the caller tells of a workload and what was measured here. */
export class Advisor {
  readonly #options: AdvisorOptions;

  constructor(options: AdvisorOptions) {
    this.#options = options;
  }

  /** @throws CodedError invalid_request for uses that do not fit in a day; sandbox_not_found */
  async advise(scope: TenantScope, request: AdviseRequest): Promise<Advice> {
    const { sandbox_id: id, template, ...workload } = request;
    const { sandboxStore, times, prices } = this.#options;
    requirePossible(workload, "uses_per_day");
    const sizes = {
      cpu: LIMITS.defaultCpu,
      memory_mb: workload.memory_mb ?? LIMITS.defaultMemoryMb,
      disk_mb: LIMITS.defaultDiskMb,
      prices: await prices(scope),
    };
    if (id === undefined) {
      const name = template ?? DEFAULT_TEMPLATE;
      return advise(workload, { ...sizes, template: name, times: await times.ofTemplate(name) });
    }
    const record = await sandboxStore.find(scope, id);
    if (record === undefined) throw sandboxNotFound(id);
    if (template !== undefined && template !== record.template)
      throw refused(
        "template",
        `is ${template}, but sandbox ${id} is of template ${record.template}; leave it out`,
      );
    return advise(workload, {
      template: record.template,
      cpu: record.cpu,
      memory_mb: workload.memory_mb ?? record.memoryMb,
      disk_mb: record.diskMb,
      prices: sizes.prices,
      ...(await times.ofSandbox(record)),
    });
  }

  /**
   * Settles what a create with `lifecycle: "auto"` leaves open. What the caller set stays, and so does the shape, if they
   * set that: the rest is then as that shape needs it.
   *
   * @throws CodedError invalid_request
   */
  async settle(
    scope: TenantScope,
    request: CreateSandboxRequest,
  ): Promise<{ settled: CreateSandboxRequest; advice: TakenAdvice }> {
    const { times, prices } = this.#options;
    const told = request.workload ?? {};
    requirePossible(told, "workload.uses_per_day");
    const isNamed =
      request.tenant !== undefined || request.metadata["tenant_id"] !== undefined || scope.tenant !== null;
    const workload: Workload = {
      ...told,
      single_tenant: told.single_tenant ?? (isNamed ? true : undefined),
    };
    const template = request.template ?? DEFAULT_TEMPLATE;
    const advice = advise(workload, {
      template,
      cpu: request.cpu ?? LIMITS.defaultCpu,
      memory_mb: request.memory_mb ?? told.memory_mb ?? LIMITS.defaultMemoryMb,
      disk_mb: request.disk_mb ?? LIMITS.defaultDiskMb,
      times: await times.ofTemplate(template),
      prices: await prices(scope),
    });
    const { persistent = advice.settings.persistent } = request;
    const settings =
      persistent === advice.settings.persistent
        ? advice.settings
        : settingsFor(persistent ? "stateful" : "ephemeral", workload, advice.facts);
    const names = Object.keys(settings) as (keyof AdviceSettings)[];
    const setByCaller = names.filter((name) => request[name] !== undefined);
    const applied = Object.fromEntries(
      names.filter((name) => !setByCaller.includes(name)).map((name) => [name, settings[name]]),
    ) as Partial<AdviceSettings>;
    const { shape, decided_by, reason, steps, lost, notes } = advice;
    return {
      settled: { ...request, ...applied },
      advice: { shape, decided_by, reason, steps, lost, notes, applied, set_by_caller: setByCaller },
    };
  }
}

function requirePossible(workload: Workload, path: string): void {
  const why = impossible(workload);
  if (why !== null) throw refused(path, `does not fit in a day: ${why}; lower one of them`);
}
