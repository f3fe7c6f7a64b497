import { describe, expect, it } from "vitest";
import { renderChecks } from "../src/commands/doctor.ts";
import { runChecks } from "../src/doctor/check.ts";
import { BuildProgressView } from "../src/output/build-progress.ts";
import { displayWidth } from "../src/output/display-width.ts";
import { formatBytes, formatDuration } from "../src/output/quantities.ts";
import { styleFor } from "../src/output/style.ts";
import { renderTable } from "../src/output/table.ts";

const PLAIN = styleFor({ isTTY: false }, {});

describe("colour", () => {
  it("needs a terminal, and yields to NO_COLOR and TERM=dumb", () => {
    expect(styleFor({ isTTY: true }, {}).red("x")).toBe("\u001b[31mx\u001b[39m");
    expect(styleFor({ isTTY: false }, {}).red("x")).toBe("x");
    expect(styleFor({ isTTY: true }, { NO_COLOR: "1" }).red("x")).toBe("x");
    expect(styleFor({ isTTY: true }, { NO_COLOR: "" }).red("x")).not.toBe("x");
    expect(styleFor({ isTTY: true }, { TERM: "dumb" }).red("x")).toBe("x");
  });
});

describe("a table", () => {
  it("lines up colours, wide characters and missing cells", () => {
    const colour = styleFor({ isTTY: true }, {});
    const lines = renderTable(["A", "B"], [[colour.red("x"), "1"], ["日本", "2"], ["long"]]).split("\n");
    expect(lines.map((line) => displayWidth(line))).toEqual([7, 7, 7, 4]);
  });
});

it("spans and sizes are written for people", () => {
  expect([0, 900, 12_000, 185_000, 7_800_000, 360_000_000].map(formatDuration)).toEqual([
    "0.0 s",
    "0.9 s",
    "12 s",
    "3 min 5 s",
    "2 h 10 min",
    "4 d 4 h",
  ]);
  expect([0, 1023, 1536, 5 * 1024 ** 3].map(formatBytes)).toEqual(["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]);
});

describe("the progress of a build", () => {
  function view(isTTY: boolean): {
    written: () => string;
    view: BuildProgressView;
    tick: (ms: number) => void;
  } {
    let text = "";
    let now = 0;
    const output = { isTTY, columns: 60, write: (piece: string) => (text += piece) };
    return {
      written: () => text,
      view: new BuildProgressView(output, PLAIN, () => now),
      tick: (ms) => (now += ms),
    };
  }

  it("is one bar a stage on a terminal, redrawn in place and no wider than it", () => {
    const { written, view: bar, tick } = view(true);
    for (let step = 0; step <= 10; step++) {
      bar.update({ stage: "download", label: `package ${"x".repeat(80)}`, fraction: step / 10 });
      tick(100);
    }
    bar.update({ stage: "golden", label: "boot", fraction: 0 });
    bar.finish("done");
    const lines = written().split("\n");
    expect(lines).toHaveLength(3); // two stages and the rest after the last newline
    for (const frame of written().split(/[\r\n]/))
      expect(displayWidth(frame.replace("\u001b[2K", ""))).toBeLessThan(60);
    expect(lines[0]?.split("\r").at(-1)).toContain("100%");
  });

  it("is plain lines elsewhere, two a stage", () => {
    const { written, view: bar, tick } = view(false);
    bar.update({ stage: "download", label: "120 packages", fraction: 0 });
    tick(4200);
    bar.update({ stage: "download", label: "x", fraction: 0.5 });
    bar.finish("done");
    expect(written()).toBe("download: 120 packages\ndownload: done in 4.2 s\n");
  });

  it("survives nonsense and does not claim that a failed stage was done", () => {
    const { written, view: bar } = view(true);
    bar.update({ stage: "s\u001b[2J", label: "\n", fraction: Number.NaN });
    bar.update({ stage: "s\u001b[2J", label: "", fraction: 7 });
    bar.update({ stage: "s\u001b[2J", label: "", fraction: -1 });
    bar.finish("failed");
    expect(written()).not.toContain("s\u001b[2J");
    expect(written().endsWith("\n")).toBe(true);
  });
});

describe("doctor", () => {
  it("reports a check that throws or hangs as failed, a warning when it is not required, and the fixes below", async () => {
    const results = await runChecks(
      [
        { name: "good", why: "w", required: true, probe: async () => ({ ok: true, found: "here" }) },
        {
          name: "bad",
          why: "sandboxes need it",
          required: true,
          probe: async () => ({ ok: false, found: "not here", fix: "Install it." }),
        },
        { name: "thrown", why: "w", required: false, probe: async () => Promise.reject(new Error("EACCES")) },
        { name: "hung", why: "w", required: true, probe: () => new Promise(() => {}) },
      ],
      30,
    );
    expect(results.map((result) => result.status)).toEqual(["ok", "fail", "warn", "fail"]);
    const text = renderChecks(results, PLAIN);
    expect(text).toContain("bad: sandboxes need it.\n  Install it.");
    expect(text).toContain("2 of what Torpor needs are missing.");
  });
});
