/** Summary of one series of readings. */
export interface Series {
  count: number;
  min: number;
  p50: number;
  p99: number;
  max: number;
}

/** Nearest-rank quantiles: every figure is a reading that was taken. */
export function summarize(readings: readonly number[]): Series {
  const sorted = readings.toSorted((a, b) => a - b);
  const at = (quantile: number): number =>
    sorted[Math.max(0, Math.ceil(quantile * sorted.length) - 1)] ?? Number.NaN;
  return { count: sorted.length, min: at(0), p50: at(0.5), p99: at(0.99), max: at(1) };
}

/** One line of the report. */
export interface Figure {
  name: string;
  value: number;
  unit: string;
  /** What it must not be above, where the project promises something. */
  most?: number;
  /** What it was compared to in the same run. */
  against?: string;
}

/** Report as a table. */
export function renderTable(figures: readonly Figure[]): string {
  const rows = figures.map((figure) => [
    figure.name,
    `${format(figure.value)} ${figure.unit}`.trim(),
    figure.most === undefined ? "" : `<= ${figure.most}`,
    figure.most === undefined ? "" : figure.value <= figure.most ? "yes" : "NO",
    figure.against ?? "",
  ]);
  const header = ["figure", "value", "target", "met", "against"];
  const widths = header.map((title, column) =>
    Math.max(title.length, ...rows.map((row) => row[column]?.length ?? 0)),
  );
  return [header, widths.map((width) => "-".repeat(width)), ...rows]
    .map((row) =>
      row
        .map((cell, column) => cell.padEnd(widths[column] ?? 0))
        .join("  ")
        .trimEnd(),
    )
    .join("\n");
}

function format(value: number): string {
  if (Math.abs(value) >= 100) return value.toFixed(0);
  return value.toFixed(Math.abs(value) >= 10 ? 1 : 2);
}
