import type { Forecast, Inventory, StateEvent, StateKind, Survival } from "@torpor/protocol";
import { STATE_KINDS } from "@torpor/protocol";

/** Named at most; the rest is counted. */
const MAX_NAMED = 20;

/**
 * What survives a pause, a hibernation, a fork (in its children) and the end of the sandbox, by kind of state.
 *
 * @param hibernateMemory as the sandbox's `hibernate_memory`: what a hibernation keeps that is not asked for otherwise
 */
export function forecastOf(inventory: Inventory, hibernateMemory: boolean): Forecast {
  const of = (event: StateEvent): Record<StateKind, Survival> => {
    const entries = STATE_KINDS.map((kind) => {
      const onDisk = event === "hibernate" && !hibernateMemory;
      return [kind, onDisk ? onDiskAlone(kind, inventory) : survival(event, kind, inventory)] as const;
    });
    return Object.fromEntries(entries) as Record<StateKind, Survival>;
  };
  return { pause: of("pause"), hibernate: of("hibernate"), fork: of("fork"), destroy: of("destroy") };
}

function survival(event: StateEvent, kind: StateKind, inventory: Inventory): Survival {
  const held = itemsOf(kind, inventory);
  if (event === "destroy") {
    return {
      survives: "none",
      lost: named(held),
      reason: "a destroyed sandbox leaves nothing; a snapshot taken before keeps what it held then",
    };
  }
  if (kind === "connections") return connections(event, inventory, held.length);
  return { survives: "all", lost: [], reason: REASONS[event][kind] };
}

/** Of a hibernation without memory. */
function onDiskAlone(kind: StateKind, inventory: Inventory): Survival {
  if (kind !== "memory" && kind !== "connections")
    return {
      survives: "all",
      lost: [],
      reason: "it is on the disk, which is kept; the sandbox boots from it",
    };
  return {
    survives: "none",
    lost: named(itemsOf(kind, inventory)),
    reason:
      "hibernate_memory is false: processes end with their memory and connections, kernels with their variables",
  };
}

function connections(
  event: Exclude<StateEvent, "destroy">,
  { connections: { external } }: Inventory,
  total: number,
): Survival {
  const lost = external.map(socketName);
  if (event === "pause") {
    return {
      survives: "all",
      lost: [],
      reason:
        lost.length === 0
          ? REASONS.pause.connections
          : "they stand still in RAM; the other ends of external ones may give up meanwhile",
    };
  }
  if (lost.length === 0) return { survives: "all", lost: [], reason: REASONS[event].connections };
  return {
    survives: lost.length === total ? "none" : "some",
    lost: named(lost),
    reason:
      event === "fork"
        ? "the children have the listening and loopback ones; an external connection has one end here, which stays the parent's: in a child it fails when used"
        : "listening and loopback ones are restored with their processes; an external connection ends with the machine and fails when used after the wake",
  };
}

const IN_RAM = "it stays in RAM as it is";
const IN_IMAGE = "it is in the image and comes back as it was";
const IN_SNAPSHOT = "every child starts with a copy of it";

const REASONS: Record<Exclude<StateEvent, "destroy">, Record<StateKind, string>> = {
  pause: {
    files: "the disk stays as it is",
    packages: "the disk stays as it is",
    caches: "the disk stays as it is",
    memory: "processes stand still and keep their memory",
    connections: IN_RAM,
    browser: IN_RAM,
  },
  hibernate: {
    files: IN_IMAGE,
    packages: IN_IMAGE,
    caches: IN_IMAGE,
    memory: "processes come back with their memory and pids, kernels with their variables",
    connections: "listening and loopback ones are restored with their processes",
    browser: IN_IMAGE,
  },
  fork: {
    files: IN_SNAPSHOT,
    packages: IN_SNAPSHOT,
    caches: IN_SNAPSHOT,
    memory:
      "every child has the processes and their memory; random numbers, host name and machine id are its own",
    connections: "every child has the listening and loopback ones",
    browser: IN_SNAPSHOT,
  },
};

function itemsOf(kind: StateKind, inventory: Inventory): string[] {
  const { files, packages, caches, memory, connections: sockets, browser } = inventory;
  switch (kind) {
    case "files":
      return [...files.sample.map(({ path }) => path), ...more(files.changed_count - files.sample.length)];
    case "packages":
      return (["pip", "npm", "apt"] as const).flatMap((source) =>
        packages[source].map(({ name, version }) => `${source} ${name} ${version}`),
      );
    case "caches":
      return caches.map(({ path }) => path);
    case "memory":
      return memory.processes.map(({ pid, command }) => `${pid} ${command}`);
    case "connections":
      return [...sockets.listening, ...sockets.loopback, ...sockets.external].map(socketName);
    case "browser":
      return browser.profiles.map(({ path }) => path);
  }
}

function socketName({ protocol, local, remote }: Inventory["connections"]["external"][number]): string {
  return remote === undefined ? `${protocol} ${local}` : `${protocol} ${local} -> ${remote}`;
}

function more(count: number): string[] {
  return count > 0 ? [`${count} more`] : [];
}

function named(items: readonly string[]): string[] {
  return [...items.slice(0, MAX_NAMED), ...more(items.length - MAX_NAMED)];
}
