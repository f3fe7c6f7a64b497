import type { BuildProgress } from "@torpor/sdk";
import { displayWidth, oneLine } from "./display-width.ts";
import { formatDuration } from "./quantities.ts";
import type { Style } from "./style.ts";

const BAR_COLUMNS = 24;
/** A terminal is redrawn at most this often. */
const REDRAW_EVERY_MS = 80;

export interface ProgressOutput {
  write(text: string): unknown;
  isTTY?: boolean | undefined;
  columns?: number | undefined;
}

/**
 * Shows a build as it goes: one bar for each stage on a terminal, redrawn in place; elsewhere a plain line when a
 * stage begins and when it ends.
 */
export class BuildProgressView {
  readonly #output: ProgressOutput;
  readonly #style: Style;
  readonly #now: () => number;
  #stage: { name: string; label: string; fraction: number; startedAt: number; drawnAt: number } | undefined;

  constructor(output: ProgressOutput, style: Style, now: () => number = () => performance.now()) {
    this.#output = output;
    this.#style = style;
    this.#now = now;
  }

  /** The next report of the build. A new stage closes the one before. */
  update({ stage, label, fraction }: BuildProgress): void {
    const now = this.#now();
    const bounded = Number.isFinite(fraction) ? Math.min(1, Math.max(0, fraction)) : 0;
    if (this.#stage?.name !== stage) {
      this.#close();
      this.#stage = { name: stage, label, fraction: bounded, startedAt: now, drawnAt: -Infinity };
      if (!this.#live) this.#output.write(`${oneLine(stage)}: ${oneLine(label)}\n`);
    }
    // A bar that runs backwards only confuses.
    this.#stage = { ...this.#stage, label, fraction: Math.max(this.#stage.fraction, bounded) };
    if (this.#live && now - this.#stage.drawnAt >= REDRAW_EVERY_MS) this.#draw();
  }

  /** The build is over; a failed stage keeps its bar where it stood. */
  finish(outcome: "done" | "failed"): void {
    if (outcome === "done") return this.#close();
    if (this.#stage !== undefined && this.#live) {
      this.#draw();
      this.#output.write("\n");
    }
    this.#stage = undefined;
  }

  get #live(): boolean {
    return this.#output.isTTY === true;
  }

  #close(): void {
    if (this.#stage === undefined) return;
    const spent = formatDuration(this.#now() - this.#stage.startedAt);
    if (this.#live) {
      this.#stage.fraction = 1;
      this.#stage.label = spent;
      this.#draw();
      this.#output.write("\n");
    } else {
      this.#output.write(`${oneLine(this.#stage.name)}: done in ${spent}\n`);
    }
    this.#stage = undefined;
  }

  #draw(): void {
    if (this.#stage === undefined) return;
    const { name, label, fraction } = this.#stage;
    this.#stage.drawnAt = this.#now();
    const filled = Math.round(fraction * BAR_COLUMNS);
    const bar = this.#style.green("█".repeat(filled)) + this.#style.dim("░".repeat(BAR_COLUMNS - filled));
    const percent = `${Math.floor(fraction * 100)}%`.padStart(4);
    const head = `  ${oneLine(name).padEnd(12)} ${bar} ${percent}  `;
    const room = (this.#output.columns ?? 80) - displayWidth(head) - 1;
    this.#output.write(`\r\u001b[2K${head}${this.#style.dim(cut(oneLine(label), room))}`);
  }
}

function cut(text: string, columns: number): string {
  if (displayWidth(text) <= columns) return text;
  return columns <= 1
    ? ""
    : `${Array.from(text)
        .slice(0, columns - 1)
        .join("")}…`;
}
