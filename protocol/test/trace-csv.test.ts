import { describe, expect, it } from "vitest";
import { CodedError } from "../src/coded-error.ts";
import { TraceReader } from "../src/trace-csv.ts";

function read(text: string) {
  const reader = new TraceReader("trace.csv");
  for (const line of text.split("\n")) reader.line(line);
  return reader.finish();
}

function refusal(text: string): string {
  try {
    read(text);
  } catch (error) {
    if (error instanceof CodedError) return error.message;
    throw error;
  }
  throw new Error("it was read");
}

describe("a trace in CSV", () => {
  it("takes Unix seconds and RFC 3339, with or without a heading, a tenant, a BOM, empty lines and CRLF", () => {
    expect(
      read("\uFEFFtime,duration,tenant\r\n2026-01-01T00:00:00Z,1.5,acme\r\n\r\n# later\n1767225660,2\n"),
    ).toEqual([
      { at_ms: 1_767_225_600_000, duration_ms: 1_500, tenant: "acme" },
      { at_ms: 1_767_225_660_000, duration_ms: 2_000, tenant: "" },
    ]);
    expect(read("0.25,0,x")).toEqual([{ at_ms: 250, duration_ms: 0, tenant: "x" }]);
  });

  it("takes columns in the order that the heading names, others beside them, and quoted fields", () => {
    expect(read('Tenant,note,Duration,Time\n"a, ""b""",x,3,10')).toEqual([
      { at_ms: 10_000, duration_ms: 3_000, tenant: 'a, "b"' },
    ]);
  });

  it("keeps uses that overlap or come in no order", () => {
    expect(read("10,100\n5,100\n10,1").map(({ at_ms: at }) => at)).toEqual([10_000, 5_000, 10_000]);
  });

  it.each([
    ["1,2\nyesterday,2,x", /line 2 has the time "yesterday", which is neither Unix seconds nor RFC 3339/],
    ["1,-3", /line 1 has the duration "-3", which is no number of seconds/],
    ["1,", /line 1 has the duration ""/],
    ["1,2,a,b", /line 1 has 4 fields, and there are 3 columns/],
    [
      "1700000000000,2",
      /line 1 has the time "1700000000000", which is no Unix time in seconds \(milliseconds\?\)/,
    ],
    ['1,2,"a', /line 1 has a quote that does not end/],
    ["time,tenant\n1,a", /line 1 names its columns, and not duration/],
    [",2", /line 1 has no time/],
  ])("refuses %j, naming the line", (text, why) => {
    expect(refusal(text)).toMatch(/^trace\.csv cannot be replayed: /);
    expect(refusal(text)).toMatch(why);
  });

  it("names the first bad lines and counts the others", () => {
    const refused = refusal("x,1\n".repeat(8));
    expect(refused).toMatch(/line 5 /);
    expect(refused).not.toMatch(/line 6 /);
    expect(refused).toMatch(/and 3 more/);
  });

  it("refuses one without a use", () => {
    expect(refusal("")).toMatch(/has no uses: a row is time,duration,tenant/);
    expect(refusal("time,duration\n")).toMatch(/has no uses/);
  });
});
