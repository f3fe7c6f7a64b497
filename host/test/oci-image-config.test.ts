import { expect, test } from "vitest";
import { parseImageConfig, requireLayers } from "../src/oci/image-config.ts";

const config = (...diffIds: string[]) =>
  parseImageConfig("team/app", JSON.stringify({ architecture: "amd64", rootfs: { diff_ids: diffIds } }));

test("an image whose manifest lists other than the layers that its configuration stands for is refused", () => {
  const manifest = (count: number) => JSON.stringify({ layers: Array.from({ length: count }, () => ({})) });
  requireLayers("team/app", config("a", "b"), manifest(2));
  for (const count of [0, 1, 3])
    expect(() => requireLayers("team/app", config("a", "b"), manifest(count))).toThrow(
      new RegExp(`image 'team/app' .* lists ${count} layers, and its configuration stands for 2`),
    );
  expect(() => requireLayers("team/app", config(), manifest(0))).toThrow(/lists 0 layers/);
  for (const broken of ["", "{}", "[]"])
    expect(() => requireLayers("team/app", config("a"), broken)).toThrow(/lists 0 layers/);
});
