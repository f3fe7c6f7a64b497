import type { Insertable, Selectable } from "kysely";
import { type MachineUse, NO_USE } from "@torpor/protocol";
import type { ClosedInterval, Metered } from "../usage/metered.ts";
import { parseJsonColumn } from "./json-column.ts";
import type { SandboxTable, UsageIntervalTable } from "./schema.ts";

type MeterColumns = Pick<
  SandboxTable,
  "metered_state" | "metered_from" | "metered_intervals" | "metered_move" | "metered_use"
>;

/** What `metered_use` holds; empty for a sandbox that was there before the meter. */
interface UseColumn {
  image_bytes?: number;
  until?: number | null;
  uncertain_ms?: number;
  base?: MachineUse;
  used?: MachineUse;
  seen_at?: number;
}

/** The open interval as the row has it. */
export function readMeterColumns(row: Pick<Selectable<SandboxTable>, keyof MeterColumns>): Metered {
  const use = parseJsonColumn(row.metered_use) as UseColumn;
  return {
    state: row.metered_state,
    from: row.metered_from,
    intervals: row.metered_intervals,
    move: row.metered_move,
    imageBytes: use.image_bytes ?? 0,
    until: use.until ?? null,
    uncertainMs: use.uncertain_ms ?? 0,
    base: use.base ?? NO_USE,
    used: use.used ?? NO_USE,
    seenAt: use.seen_at ?? row.metered_from,
  };
}

export function meterColumns(metered: Metered): Insertable<MeterColumns> {
  const use: UseColumn = {
    image_bytes: metered.imageBytes,
    until: metered.until,
    uncertain_ms: metered.uncertainMs,
    base: metered.base,
    used: metered.used,
    seen_at: metered.seenAt,
  };
  return {
    metered_state: metered.state,
    metered_from: metered.from,
    metered_intervals: metered.intervals,
    metered_move: metered.move,
    metered_use: JSON.stringify(use),
  };
}

/** Whose interval it is, and what was allotted. */
type Metering = Pick<
  UsageIntervalTable,
  "sandbox_id" | "account" | "tenant" | "template" | "cpu" | "memory_mb" | "disk_mb"
>;

export function intervalRow(of: Metering, interval: ClosedInterval): UsageIntervalTable {
  const { number, state, imageBytes, from, to, used, uncertainMs } = interval;
  return {
    ...of,
    number,
    state,
    image_bytes: imageBytes,
    from_at: from,
    to_at: to,
    ...used,
    uncertain_ms: uncertainMs,
  };
}
