import { randomBytes } from "node:crypto";
import { chmodSync, chownSync, existsSync, rmSync } from "node:fs";
import { mkdir, readFile, statfs } from "node:fs/promises";
import { availableParallelism, hostname, totalmem } from "node:os";
import { join } from "node:path";
import { compileEarly, createLog, Gate, type Log, Scope, SecretValues, systemClock } from "@torpor/base";
import { CodedError, type HostHealth } from "@torpor/protocol";
import { createHostApi } from "./api/host-api.ts";
import { CgroupTree, systemCgroupMounts } from "./cgroup.ts";
import { type HostConfig, readConfig } from "./config.ts";
import { GvisorDriver, netSysctlsMustHide } from "./driver/gvisor/gvisor-driver.ts";
import { findRunsc, inspectRunsc } from "./driver/gvisor/runsc.ts";
import { ImageStore } from "./image/image-store.ts";
import { instanceNames } from "./instance.ts";
import { Journal } from "./journal.ts";
import type { Headroom } from "./machine/capacity.ts";
import { egressLeft } from "./machine/egress-left.ts";
import { EventFeed } from "./machine/event-feed.ts";
import { MachineJournal } from "./machine/machine-journal.ts";
import { ImageRoom } from "./machine/image-room.ts";
import { Machines } from "./machine/machines.ts";
import { newMachineId } from "./machine/new-entry.ts";
import { Reconciliation } from "./machine/reconciliation.ts";
import { Sleep } from "./machine/sleep.ts";
import { defaultRestoreWidth } from "./machine/pool.ts";
import { Slots } from "./machine/slots.ts";
import { TemplatePools } from "./machine/template-pools.ts";
import { GUEST_PIDS_LIMIT } from "./machine/unlock.ts";
import { sweepToolGroups } from "./oci/tool-group.ts";
import { ImagesFolder } from "./oci/images-folder.ts";
import { Router, type RouterMemory } from "./network/router.ts";
import { findResolvers, RESOLV_CONF } from "./resolvers.ts";
import { claimRunFile } from "./run-file.ts";
import { SecretBox } from "./secret-box.ts";
import { TemplateStore } from "./template/index.ts";

const VERSION = "0.1.0";
/** Writable layer and limits of machines that wait in the pool; what most creates ask for. */
const POOL_DISK_MIB = 4096;
const POOL_MEMORY_MIB = 1024;
const TIDY_INTERVAL_MS = 60_000;
/** Images that are copied and unpacked at once: both are work for the disk. */
const IMAGES_AT_ONCE = 2;
/** Where Debian's package bash-static has it. */
const STATIC_BASH = "/bin/bash-static";

async function main(): Promise<void> {
  compileEarly();
  const config = readConfig(process.env);
  if (process.getuid?.() !== 0)
    throw new CodedError(
      "permission_denied",
      "the host runs machines and their networks and needs root; start it with `sudo torpor up`",
    );
  const secretValues = new SecretValues();
  const log = createLog({
    name: "host",
    level: config.logLevel,
    redact: (line) => secretValues.redact(line),
  });
  const startedAt = performance.now();
  const hostDir = join(config.stateDir, "host");
  const runDir = join(config.stateDir, "run");
  await mkdir(hostDir, { recursive: true, mode: 0o700 });
  await mkdir(runDir, { recursive: true, mode: 0o755 });
  await using scope = new Scope();
  const socketPath = join(runDir, "host.sock");
  scope.defer(claimRunFile(join(runDir, "host.json"), { socket: socketPath }));

  const instance = instanceNames(config.stateDir);
  const journal = new Journal(join(hostDir, "journal.sqlite"));
  scope.defer(() => journal.close());
  const router = await openRouter(journal, instance, config.resolvers ?? (await findResolvers()), log);
  scope.defer(() => router.close());
  const cgroups = new CgroupTree(systemCgroupMounts(), instance.cgroup);
  cgroups.open();
  await sweepToolGroups(cgroups);
  const runsc = await inspectRunsc(findRunsc(config.runscPath));
  const driver = new GvisorDriver({
    runsc,
    platform: config.platform,
    cgroups,
    cacheDir: join(hostDir, "cache", "disks"),
    spareDir: join(hostDir, "spare"),
    hideNetSysctls: await netSysctlsMustHide(instance.routerNetns),
  });
  const slots = new Slots({
    router,
    driver,
    cgroups,
    directory: join(hostDir, "machines"),
    netnsOf: (slot) => instance.slotNetns(slot),
  });
  const feed = new EventFeed(journal);
  const store = new TemplateStore(join(hostDir, "templates"));
  await store.sweep();
  const headroom = await watchHeadroom(hostDir, config.diskWatermarkPercent, scope);
  const pools = new TemplatePools({
    store,
    driver,
    slots,
    clock: systemClock,
    log,
    restoreGate: new Gate(defaultRestoreWidth()),
    readyTarget: config.poolTarget,
    shellTarget: config.poolTarget === 0 ? 0 : config.poolShells,
    shellDemandMs: config.poolDemandMs,
    diskMib: POOL_DISK_MIB,
    limits: { cpu: availableParallelism(), memoryMib: POOL_MEMORY_MIB },
    preparation: () => ({
      entropy_base64: randomBytes(64).toString("base64"),
      machine_id: newMachineId(),
      resolv_conf: RESOLV_CONF,
      pids_limit: GUEST_PIDS_LIMIT,
    }),
    recipeDirs: [config.recipesDir],
    guestBinaryPath: config.guestBinaryPath,
    cacheDir: join(hostDir, "cache"),
    mirror: config.aptMirror,
    images: {
      folder: new ImagesFolder(config.images.dir),
      registries: config.images.registries,
      registryAccess: { caFile: config.images.caFile, proxyEnv: config.images.proxyEnv },
      bashPath: STATIC_BASH,
      maxMib: config.images.maxMib,
      room: new ImageRoom(headroom),
      cgroups,
      gate: new Gate(IMAGES_AT_ONCE),
    },
  });
  const images = new ImageStore(join(hostDir, "images"));
  await images.open();
  scope.defer(() => images.close());
  const sleep = new Sleep({
    driver,
    images,
    target: pools,
    clear: (slot) => slots.clear(slot),
    router,
    headroom,
    log,
  });
  const machines = new Machines({
    images,
    sleep,
    journal: new MachineJournal(journal, feed, systemClock, log),
    driver,
    slots,
    router,
    source: pools,
    feed,
    secretBox: SecretBox.open(join(hostDir, "secrets.key")),
    secretValues,
    clock: systemClock,
    log,
    capacity: {
      cpus: availableParallelism(),
      memoryMb: Math.floor(totalmem() / 1048576),
      diskMb: (await diskOf(hostDir)).totalMb,
    },
    headroom,
    agentPatienceMs: config.agentPatienceMs,
  });
  const adoption = await machines.adopt();
  machines.watch();
  scope.defer(() => machines.stopWatching());
  await pools.start();
  driver.keepReady();
  scope.defer(() => driver.close());
  const reconciliation = new Reconciliation({ machines, slots, images, log });
  const sweepImages = (): Promise<void> => pools.sweepImages(() => machines.templatesInUse());
  scope.defer(keepTidy(journal, reconciliation, sweepImages, log));
  // What an earlier host left in the slots goes first.
  void reconciliation.idle().then(() => slots.keepSpares());

  let drained: Promise<void> | undefined;
  const health = async (): Promise<HostHealth> => ({
    host_id: hostname(),
    version: VERSION,
    driver: driver.info.name,
    driver_version: driver.info.version,
    acceleration: driver.info.acceleration,
    capacity: {
      cpus: availableParallelism(),
      memory_mb: Math.floor(totalmem() / 1048576),
      disk_mb: (await diskOf(hostDir)).totalMb,
    },
    machines: machines.counts,
    pool: await pools.status(),
  });
  const server = createHostApi({
    machines,
    pools,
    feed,
    log,
    token: config.token,
    health,
    // A second caller joins the first; one that failed can be asked again.
    reconciliation,
    drain: () =>
      (drained ??= drainAll().catch((error: unknown) => {
        drained = undefined;
        throw error;
      })),
  });
  const drainAll = async (): Promise<void> => {
    await machines.endAll("shutdown");
    await pools.stop();
    await Promise.all([reconciliation.idle(), slots.tidyUp()]);
    const { failed } = await slots.sweep();
    if (failed.size > 0)
      throw new AggregateError(failed.values(), `slots ${[...failed.keys()].join(", ")} cannot be cleared`);
    await router.remove();
    cgroups.close();
    journal.setFact("router", null);
  };
  await listen(server, socketPath, config);
  scope.defer(() => {
    server.close();
    server.closeAllConnections();
    rmSync(socketPath, { force: true });
  });
  log.info({
    op: "host.start",
    outcome: "ready",
    ...adoption,
    driver: driver.info.name,
    driverVersion: runsc.version,
    durationMs: Math.round(performance.now() - startedAt),
  });
  process.stdout.write(`${JSON.stringify({ ready: true, pid: process.pid, socket: socketPath })}\n`);
  const signal = await new Promise<string>((resolve) => {
    for (const name of ["SIGTERM", "SIGINT"] as const) process.once(name, () => resolve(name));
  });
  // Machines run on: the next host adopts them. What only waits is made anew faster than it is taken over.
  await (drained ?? Promise.all([pools.stop(), slots.tidyUp()]));
  log.info({ op: "host.stop", outcome: "stopped", signal, left: machines.counts.running });
}

/** Keeps the journal small and the machine free of what nobody owns, now and once a minute. @returns stops it */
function keepTidy(
  journal: Journal,
  reconciliation: Reconciliation,
  sweepImages: () => Promise<void>,
  log: Log,
): () => void {
  const tidy = (): void => {
    try {
      journal.prune(Date.now());
    } catch (error) {
      log.error({ op: "journal.prune", err: error }, "will be tried again in a minute");
    }
    reconciliation.sweep().catch((error: unknown) => log.error({ op: "host.sweep", err: error }));
    sweepImages().catch((error: unknown) => log.error({ op: "host.sweepImages", err: error }));
  };
  tidy();
  const timer = setInterval(tidy, TIDY_INTERVAL_MS);
  return () => clearInterval(timer);
}

async function openRouter(
  journal: Journal,
  instance: ReturnType<typeof instanceNames>,
  resolvers: readonly string[],
  log: Log,
): Promise<Router> {
  const memory = (journal.fact("router") ?? undefined) as RouterMemory | undefined;
  const router = await Router.open({
    instance,
    memory,
    resolvers,
    egress: egressLeft(journal.living()),
    onRefused: (slot, why) => log.debug({ op: "egress.refuse", slot }, why),
    log,
  });
  journal.setFact("router", router.memory);
  return router;
}

/** The numbers of `df`: blocks kept for root are neither used nor free. */
async function diskOf(directory: string): Promise<{ totalMb: number; freeMb: number; usedPercent: number }> {
  const { blocks, bfree, bavail, bsize } = await statfs(directory);
  const used = blocks - bfree;
  return {
    totalMb: Math.floor((blocks * bsize) / 1048576),
    freeMb: Math.floor((bavail * bsize) / 1048576),
    usedPercent: (100 * used) / Math.max(1, used + bavail),
  };
}

/** Free memory and disk, looked at twice a second so that a create need not. */
async function watchHeadroom(
  directory: string,
  diskWatermarkPercent: number,
  scope: Scope,
): Promise<() => Headroom> {
  const look = async (): Promise<Headroom> => {
    const available = /^MemAvailable:\s+(\d+) kB/m.exec(await readFile("/proc/meminfo", "utf8"))?.[1];
    const { freeMb, usedPercent } = await diskOf(directory);
    return {
      memoryMb: Math.floor(Number(available) / 1024),
      diskMb: freeMb,
      diskUsedPercent: usedPercent,
      diskWatermarkPercent,
    };
  };
  let latest = await look();
  const timer = setInterval(() => {
    look().then(
      (seen) => (latest = seen),
      () => {},
    );
  }, 500);
  scope.defer(() => clearInterval(timer));
  return () => latest;
}

async function listen(
  server: ReturnType<typeof createHostApi>,
  socketPath: string,
  config: HostConfig,
): Promise<void> {
  if (existsSync(socketPath)) rmSync(socketPath); // ours: the run file says no other host lives
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(socketPath, resolve);
  });
  chmodSync(socketPath, 0o660);
  chownSync(socketPath, 0, config.socketGid);
}

try {
  await main();
  process.exit(0);
} catch (error) {
  process.stderr.write(`torpor host: ${error instanceof Error ? error.message : String(error)}\n`);
  if (!(error instanceof CodedError)) process.stderr.write(`${error instanceof Error ? error.stack : ""}\n`);
  process.exit(1);
}
