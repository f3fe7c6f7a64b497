import type { PricesWire, SandboxWire } from "./wire.ts";

/** Shapes of advice on the wire, as those in `wire.ts`. */

export interface WorkloadWire {
  survives?: boolean | StateKindWire[] | undefined;
  untrusted?: boolean | undefined;
  interactive?: boolean | undefined;
  single_tenant?: boolean | undefined;
  idle_gap_seconds?: number | undefined;
  setup_seconds?: number | undefined;
  memory_mb?: number | undefined;
  uses_per_day?: number | undefined;
  use_seconds?: number | undefined;
}

type ShapeWire = "ephemeral" | "stateful";
type QuestionWire = "survives" | "untrusted" | "warmth" | "single_tenant" | "idle" | "unsure";
type StateKindWire = "files" | "packages" | "caches" | "memory" | "connections" | "browser";

interface AdviceSettingsWire {
  persistent: boolean;
  ttl_seconds: number | null;
  on_expire: SandboxWire["on_expire"];
  idle_timeout_seconds: number | null;
  on_idle: SandboxWire["on_idle"];
  retention_seconds: number | null;
}

interface WalkedWire {
  shape: ShapeWire;
  decided_by: QuestionWire;
  reason: string;
  steps: {
    question: QuestionWire;
    asks: string;
    answer: "yes" | "no" | "unknown";
    points_to: ShapeWire | null;
    decides: boolean;
    reason: string;
  }[];
  lost: { kind: StateKindWire; when: string }[];
  notes: string[];
}

interface MeasuredWire {
  value: number;
  measured: boolean;
  samples: number;
  source: "sandbox" | "template" | "machine" | "documented";
}

type FactFromWire = "given" | "measured" | "assumed";

export interface AdviceWire extends WalkedWire {
  settings: AdviceSettingsWire;
  costs: {
    policy: string;
    label: string;
    shape: ShapeWire;
    on_idle: SandboxWire["on_idle"];
    idle_seconds: number;
    cost_per_day: number;
    cold_starts_per_day: number;
    wakes_per_day: number;
    wait_p50_ms: number;
    wait_p95_ms: number;
    advised: boolean;
  }[];
  break_even: {
    sleep_beats_awake_seconds: number | null;
    rebuild_beats_sleep_seconds: number | null;
    rebuild_beats_awake_seconds: number | null;
  };
  facts: {
    create_seconds: MeasuredWire;
    hibernate_seconds: MeasuredWire;
    wake_seconds: MeasuredWire;
    image_bytes: MeasuredWire;
    template: string;
    cpu: number;
    memory_mb: number;
    disk_mb: number;
    setup_seconds: number;
    use_seconds: number;
    idle_gap_seconds: number;
    uses_per_day: number;
    from: {
      setup_seconds: FactFromWire;
      use_seconds: FactFromWire;
      idle_gap_seconds: FactFromWire;
      uses_per_day: FactFromWire;
    };
    prices: PricesWire;
  };
}

export interface TakenAdviceWire extends WalkedWire {
  applied: { [Name in keyof AdviceSettingsWire]?: AdviceSettingsWire[Name] | undefined };
  set_by_caller: (keyof AdviceSettingsWire)[];
}
