import { displayWidth, oneLine } from "./display-width.ts";

/**
 * Columns set under their headings, two spaces apart, the last one unpadded. Cells are made one safe line each:
 * names and metadata come from users and must not move the cursor.
 */
export function renderTable(headings: readonly string[], rows: readonly (readonly string[])[]): string {
  const lines = [headings, ...rows].map((row) => headings.map((_, column) => oneLine(row[column] ?? "")));
  const widths = headings.map((_, column) =>
    Math.max(...lines.map((row) => displayWidth(row[column] ?? ""))),
  );
  return lines
    .map((row) =>
      row
        .map((cell, column) =>
          column === row.length - 1 ? cell : cell + " ".repeat((widths[column] ?? 0) - displayWidth(cell)),
        )
        .join("  ")
        .trimEnd(),
    )
    .join("\n");
}
