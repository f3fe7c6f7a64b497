import { cycles, type Footprint, type Instance, storm } from "@torpor/test";
import type { Figure } from "./figures.ts";

const CYCLES = 500;
const STORM_MS = 300_000;
const STORM_SANDBOXES = 30;

/** 500 sandboxes made, used and destroyed: by how much what the instance takes of the machine has grown. */
export async function createDestroyCycles(instance: Instance): Promise<Figure[]> {
  const { before, after } = await cycles(instance, CYCLES);
  process.stderr.write(`before: ${JSON.stringify(before)}\nafter:  ${JSON.stringify(after)}\n`);
  const growth = (...kinds: (keyof Footprint)[]): number =>
    kinds.reduce((sum, kind) => sum + after[kind] - before[kind], 0);
  const name = `${CYCLES} create/destroy cycles: growth`;
  return [
    {
      name: `${name} of open files, host and server`,
      value: growth("hostFds", "serverFds"),
      unit: "",
      most: 8,
    },
    {
      name: `${name} of processes, namespaces, links, rules, mounts, loops, cgroups`,
      value: growth(
        "processes",
        "networkNamespaces",
        "links",
        "rules",
        "mounts",
        "loopDevices",
        "cgroups",
        "machineDirectories",
        "images",
      ),
      unit: "",
      most: 0,
    },
    { name: `${name} of the host's memory`, value: growth("hostRssMib"), unit: "MiB", most: 64 },
    { name: `${name} of the server's memory`, value: growth("serverRssMib"), unit: "MiB", most: 64 },
    { name: `${name} of disk`, value: growth("machinesAndImagesMib"), unit: "MiB", most: 4 },
  ];
}

/** Five minutes of kill -9 on 30 sandboxes' host, server and runtimes. */
export async function crashStorm(instance: Instance): Promise<Figure[]> {
  const seed = Number(process.env["TORPOR_STORM_SEED"] || 0) || Date.now() % 1_000_000;
  const { kills, wrongs, unharmed, fates } = await storm(instance, {
    sandboxes: STORM_SANDBOXES,
    durationMs: Number(process.env.TORPOR_STORM_SECONDS || 0) * 1000 || STORM_MS,
    seed,
  });
  process.stderr.write(`${JSON.stringify({ seed, kills, fates })}\n${wrongs.join("\n")}\n`);
  const dealt = `${kills.host} hosts, ${kills.server} servers, ${kills.runtime} runtimes killed; ${unharmed} unharmed`;
  return [
    {
      name: "storm: sandboxes lost, orphans, ends without a reason",
      value: wrongs.length,
      unit: "",
      most: 0,
      against: dealt,
    },
  ];
}
