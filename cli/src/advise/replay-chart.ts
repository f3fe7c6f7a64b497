import { formatMoney, formatWait } from "./render-advice.ts";
import type { Replay } from "./replay-command.ts";

const LABELS = 270;
const BARS = 420;
const ROW = 30;
const GAP = 24;

/** A page that stands alone: what each policy costs, and how long uses wait under it. */
export function replayChart(replay: Replay): string {
  const { policies, currency, cheapest } = replay;
  const panels = [
    {
      title: "Cost",
      of: policies.map(({ cost }) => cost),
      text: (value: number) => formatMoney(value, currency),
    },
    { title: "Wait, p95", of: policies.map((one) => one.wait_p95_ms), text: formatWait },
    { title: "Cold starts", of: policies.map((one) => one.cold_starts), text: String },
  ];
  const height = panels.length * (policies.length * ROW + 2 * GAP);
  const width = LABELS + BARS + 130;
  const bars = panels.flatMap(({ title, of, text }, panel) => {
    const top = panel * (policies.length * ROW + 2 * GAP) + GAP;
    const most = Math.max(...of, Number.MIN_VALUE);
    const rows = policies.map(({ policy, label }, index) => {
      const value = of[index] ?? 0;
      const y = top + 10 + index * ROW;
      const length = Math.max(1, (value / most) * BARS).toFixed(1);
      const kind = policy === cheapest ? ' class="least"' : "";
      return `<text x="${LABELS - 10}" y="${y + 15}" text-anchor="end">${escaped(label)}</text><rect${kind} x="${LABELS}" y="${y}" width="${length}" height="20"/><text x="${LABELS + Number(length) + 6}" y="${y + 15}">${escaped(text(value))}</text>`;
    });
    return [`<text class="title" x="${LABELS}" y="${top}">${title}</text>`, ...rows];
  });
  const heading = `${replay.uses} uses of ${replay.tenants} tenant${replay.tenants === 1 ? "" : "s"}, ${replay.from} to ${replay.to}`;
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>${escaped(replay.source)} under every policy</title>
<style>body{font:15px system-ui,sans-serif;margin:2em;color:#222}svg{max-width:100%}text{font-size:13px;fill:#222}.title{font-weight:600;font-size:15px}rect{fill:#9ab}.least{fill:#2a7}</style></head>
<body><h1>${escaped(replay.source)} under every policy</h1><p>${escaped(heading)}. Green costs least.</p>
<svg viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img" aria-label="cost, wait and cold starts of each policy">
${bars.join("\n")}
</svg></body></html>
`;
}

const escaped = (text: string): string =>
  text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
