import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { World } from "./world.ts";

interface Operation {
  summary?: string;
  responses: Record<string, unknown>;
}

test("docs/openapi.json is what the server serves; npm run openapi -w @torpor/server writes it anew", async () => {
  await using world = await World.start();
  const served = await world.call("GET", "/v1/openapi.json", { key: null });
  const committed = readFileSync(new URL("../../docs/openapi.json", import.meta.url), "utf8");
  expect(served.text === committed, "docs/openapi.json is out of date").toBe(true);
});

test("every operation of the reference has a summary and says what an error looks like", async () => {
  await using world = await World.start();
  const document = (await world.call("GET", "/v1/openapi.json")).body as {
    paths: Record<string, Record<string, Operation>>;
  };
  expect(Object.keys(document.paths).length).toBeGreaterThan(20);
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      expect(operation.summary, `${method} ${path}`).toBeTruthy();
      expect(operation.responses, `${method} ${path}`).toHaveProperty("default");
    }
  }
});
