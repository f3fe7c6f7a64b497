import { z } from "zod";
import { sandboxIdSchema } from "./ids.ts";

/** The six kinds of state, by name, everywhere. */
export const STATE_KINDS = ["files", "packages", "caches", "memory", "connections", "browser"] as const;
export type StateKind = (typeof STATE_KINDS)[number];

/** What may happen to a sandbox, and so to its state. */
export const STATE_EVENTS = ["pause", "hibernate", "fork", "destroy"] as const;
export type StateEvent = (typeof STATE_EVENTS)[number];

const packagesSchema = z.array(z.object({ name: z.string(), version: z.string() }));
const socketsSchema = z.array(
  z.object({
    protocol: z.string(),
    local: z.string(),
    remote: z.string().optional(),
    state: z.string().optional(),
  }),
);

/** The inventory as the guest takes it. */
export const inventorySchema = z.object({
  taken_at: z.string(),
  /** Changed since the template. */
  files: z.object({
    changed_count: z.number().int(),
    changed_bytes: z.number().int(),
    sample: z.array(z.object({ path: z.string(), size: z.number().int(), modified_at: z.string() })),
    truncated: z.boolean(),
  }),
  /** Added since the template. */
  packages: z.object({ pip: packagesSchema, npm: packagesSchema, apt: packagesSchema }),
  caches: z.array(z.object({ path: z.string(), size_bytes: z.number().int() })),
  memory: z.object({
    rss_bytes: z.number().int(),
    processes: z.array(
      z.object({
        pid: z.number().int(),
        command: z.string(),
        rss_bytes: z.number().int(),
        started_at: z.string(),
      }),
    ),
    kernels: z.array(z.looseObject({ language: z.string() })),
  }),
  connections: z.object({ listening: socketsSchema, loopback: socketsSchema, external: socketsSchema }),
  browser: z.object({
    profiles: z.array(z.object({ path: z.string(), browser: z.string(), size_bytes: z.number().int() })),
  }),
});
export type Inventory = z.infer<typeof inventorySchema>;

const survivalSchema = z.object({
  survives: z.enum(["all", "some", "none"]),
  /** What does not, each by what a person knows it by. */
  lost: z.array(z.string()),
  reason: z.string(),
});
export type Survival = z.infer<typeof survivalSchema>;

const survivalByKindSchema = z.object({
  files: survivalSchema,
  packages: survivalSchema,
  caches: survivalSchema,
  memory: survivalSchema,
  connections: survivalSchema,
  browser: survivalSchema,
});

/** What survives what, by kind. */
export const forecastSchema = z.object({
  pause: survivalByKindSchema,
  hibernate: survivalByKindSchema,
  fork: survivalByKindSchema,
  destroy: survivalByKindSchema,
});
export type Forecast = z.infer<typeof forecastSchema>;

/** Answer of `GET /v1/sandboxes/{id}/state`. */
export const stateSchema = z.object({
  sandbox_id: sandboxIdSchema,
  generation: z.number().int(),
  ...inventorySchema.shape,
  forecast: forecastSchema,
});
export type StateInventory = z.infer<typeof stateSchema>;
