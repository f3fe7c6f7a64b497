import type { Recipe } from "../src/template/index.ts";

/** The smallest real recipe: Debian's essential packages and apt, one file, one setup script. */
export function smallRecipe(
  name: string,
  setup = "#!/bin/sh\nset -eu\necho made > /etc/made-by-setup\nid -u > /etc/setup-user\n",
): Recipe {
  return {
    name,
    description: "for tests",
    suite: "bookworm",
    variant: "apt",
    components: ["main"],
    sourceDateEpoch: 1_700_000_000,
    packages: [],
    npmPackages: [],
    excludePaths: ["/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*"],
    includePaths: [],
    env: { A: "1" },
    user: "root",
    workdir: "/",
    setupNetwork: false,
    services: [],
    layers: [
      {
        name,
        entries: [{ path: "/etc/from-recipe", kind: "file", mode: 0o755, content: Buffer.from("content") }],
        setup: Buffer.from(setup),
      },
    ],
  };
}
