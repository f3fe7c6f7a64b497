import { z } from "zod";
import { sandboxIdSchema, templateNameSchema } from "./ids.ts";
import { pricesSchema } from "./price.ts";
import { onExpireSchema, onIdleSchema, sandboxSchema } from "./sandbox.ts";
import { STATE_KINDS } from "./state.ts";
import { workloadSchema } from "./workload.ts";

/** Body of `POST /v1/advise`: what is known of the workload, and of which sandbox or template measured facts are taken. */
export const adviseSchema = z.strictObject({
  ...workloadSchema.shape,
  sandbox_id: sandboxIdSchema
    .optional()
    .describe("One of yours: its size, its image, its own sleeps and wakes, and how it was used count."),
  template: templateNameSchema.optional().describe("Default that of the sandbox, else `code-interpreter`."),
});
export type AdviseRequest = z.output<typeof adviseSchema>;

/** The two shapes of a sandbox. */
export const SHAPES = ["ephemeral", "stateful"] as const;
export type Shape = (typeof SHAPES)[number];

/** The six questions, in the order in which they are asked. */
export const QUESTIONS = {
  survives: "Does anything need to survive between uses?",
  untrusted: "Is the code untrusted?",
  warmth: "Is warmth the experience?",
  single_tenant: "Is it strictly one tenant?",
  idle: "Will it idle between bursts?",
  unsure: "Still unsure?",
} as const;
export type Question = keyof typeof QUESTIONS;
const questionSchema = z.enum(Object.keys(QUESTIONS) as [Question, ...Question[]]);

const stepSchema = z.object({
  question: questionSchema,
  /** The question as a person reads it. */
  asks: z.string(),
  answer: z.enum(["yes", "no", "unknown"]),
  /** The shape that the answer speaks for; null for neither. */
  points_to: z.enum(SHAPES).nullable(),
  decides: z.boolean(),
  reason: z.string(),
});
export type AdviceStep = z.infer<typeof stepSchema>;

/** Fields of a create, all that an advice sets. */
export const adviceSettingsSchema = z.object({
  persistent: z.boolean(),
  ttl_seconds: z.number().int().nullable(),
  on_expire: onExpireSchema,
  idle_timeout_seconds: z.number().int().nullable(),
  on_idle: onIdleSchema,
  retention_seconds: z.number().int().nullable(),
});
export type AdviceSettings = z.infer<typeof adviceSettingsSchema>;

const measuredSchema = z.object({
  value: z.number(),
  /** Whether it was seen on this machine; false for a documented figure. */
  measured: z.boolean(),
  /** How many times it was seen; the value is the median of the newest. */
  samples: z.number().int(),
  /** Where it is from: `sandbox`, `template`, `machine` (other templates), or `documented`. */
  source: z.enum(["sandbox", "template", "machine", "documented"]),
});
export type Measured = z.infer<typeof measuredSchema>;

/** How long moves take here, and how large an image is. */
export const measuredTimesSchema = z.object({
  create_seconds: measuredSchema,
  hibernate_seconds: measuredSchema,
  wake_seconds: measuredSchema,
  image_bytes: measuredSchema,
});
export type MeasuredTimes = z.infer<typeof measuredTimesSchema>;

const patternSchema = z.enum(["given", "measured", "assumed"]);

const factsSchema = z.object({
  ...measuredTimesSchema.shape,
  template: z.string(),
  cpu: z.number(),
  memory_mb: z.number().int(),
  disk_mb: z.number().int(),
  setup_seconds: z.number(),
  use_seconds: z.number(),
  idle_gap_seconds: z.number(),
  uses_per_day: z.number(),
  /** Where each of these is from: the request, the sandbox's own history, or nowhere. */
  from: z.object({
    setup_seconds: patternSchema,
    use_seconds: patternSchema,
    idle_gap_seconds: patternSchema,
    uses_per_day: patternSchema,
  }),
  prices: pricesSchema,
});
export type AdviceFacts = z.infer<typeof factsSchema>;

/** What one alternative comes to, on a day like all others. */
export const policyCostSchema = z.object({
  policy: z.string(),
  /** For a person. */
  label: z.string(),
  shape: z.enum(SHAPES),
  on_idle: onIdleSchema,
  idle_seconds: z.number(),
  /** In the currency of the prices; not rounded. */
  cost_per_day: z.number(),
  cold_starts_per_day: z.number(),
  wakes_per_day: z.number(),
  wait_p50_ms: z.number(),
  wait_p95_ms: z.number(),
  /** Whether this is what the settings come to. */
  advised: z.boolean(),
});
export type PolicyCost = z.infer<typeof policyCostSchema>;

const gap = z.number().nullable();

/** Answer of `POST /v1/advise`. */
export const adviceSchema = z.object({
  shape: z.enum(SHAPES),
  decided_by: questionSchema,
  /** Why, in one sentence: that of the step that decided. */
  reason: z.string(),
  steps: z.array(stepSchema),
  settings: adviceSettingsSchema,
  /** What of the six kinds of state is gone, and when. */
  lost: z.array(z.object({ kind: z.enum(STATE_KINDS), when: z.string() })),
  /** What else to know. */
  notes: z.array(z.string()),
  costs: z.array(policyCostSchema),
  /** Seconds between two uses; null for never. */
  break_even: z.object({
    sleep_beats_awake_seconds: gap,
    rebuild_beats_sleep_seconds: gap,
    rebuild_beats_awake_seconds: gap,
  }),
  facts: factsSchema,
});
export type Advice = z.infer<typeof adviceSchema>;

/** In the answer of a create with `lifecycle: "auto"`: what was advised, what of it was taken, and what the caller had set. */
export const takenAdviceSchema = z.object({
  ...adviceSchema.pick({ shape: true, decided_by: true, reason: true, steps: true, lost: true, notes: true })
    .shape,
  /** Fields that are as advised, with their values. */
  applied: adviceSettingsSchema.partial(),
  /** Fields that the caller set. */
  set_by_caller: z.array(adviceSettingsSchema.keyof()),
});
export type TakenAdvice = z.infer<typeof takenAdviceSchema>;

/** Answer of a create. */
export const createdSandboxSchema = sandboxSchema.extend({
  advice: takenAdviceSchema.optional().describe('With `lifecycle: "auto"`.'),
});
export type CreatedSandbox = z.infer<typeof createdSandboxSchema>;
