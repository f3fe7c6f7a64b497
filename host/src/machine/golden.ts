import { existsSync } from "node:fs";
import { mkdir, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { CodedError } from "@torpor/protocol";
import type { Driver, MachineLimits, MachineRoot, RootSurroundings } from "../driver/driver.ts";
import { sync } from "../sync.ts";
import { GuestClient, type GuestPreparation, newHostKey } from "./guest-client.ts";
import type { TemplateManifest } from "../template/manifest.ts";
import type { Slots } from "./slots.ts";

/** A golden snapshot: a template packed, booted, warmed up, locked and checkpointed by one driver build. */
export interface Golden {
  imageDir: string;
  /** The root filesystem it stands on. */
  root: MachineRoot;
  /** What its copies ask for before they take an identity: programs of the template run in them, and must give them none. */
  hostKey: string;
}

interface GoldenManifest {
  driver: string;
  driver_version: string;
  acceleration: string;
  baked_at: string;
  host_key?: string;
}

const MANIFEST = "golden.json";
const IMAGE = "image";
const ROOT = "root.img";
/** A cold boot of the agent takes well under a second; a machine under load may need longer. */
const BOOT_TIMEOUT_MS = 30_000;
/** A notebook kernel that imports its libraries on a busy machine needs a minute at worst. */
const SERVICES_TIMEOUT_MS = 180_000;
const PREPARE_TIMEOUT_MS = SERVICES_TIMEOUT_MS + 30_000;
/** Lets connections and garbage of the warm-up go before the machine is photographed. */
const SETTLE_MS = 300;

/** Name of a driver's golden snapshot below a template: one for each way of running, e.g. `gvisor-systrap`. */
export function goldenName({ info }: Driver): string {
  return `${info.name}-${info.acceleration}`;
}

/**
 * Looks for a golden snapshot that this driver build can restore.
 *
 * @returns undefined when there is none, or one of another build (which must be baked anew).
 */
export async function findGolden(goldenDir: string, driver: Driver): Promise<Golden | undefined> {
  let manifest: GoldenManifest;
  try {
    manifest = JSON.parse(await readFile(join(goldenDir, MANIFEST), "utf8")) as GoldenManifest;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
  const { name, version, acceleration } = driver.info;
  if (
    manifest.host_key === undefined || // of an earlier Torpor
    manifest.driver !== name ||
    manifest.driver_version !== version ||
    manifest.acceleration !== acceleration
  )
    return undefined;
  const root = findRoot(goldenDir);
  // One baked by a Torpor that did not pack roots yet is none of this build.
  return root === undefined
    ? undefined
    : { imageDir: join(goldenDir, IMAGE), root, hostKey: manifest.host_key };
}

/** The root filesystem that a template was packed into, for whatever build; undefined when there is none. */
export function findRoot(goldenDir: string): MachineRoot | undefined {
  const imagePath = join(goldenDir, ROOT);
  return existsSync(imagePath) ? { imagePath } : undefined;
}

/** What the agent of a fresh boot is told of its template. */
export function templatePreparation(
  settings: Pick<TemplateManifest, "env" | "user" | "workdir" | "services">,
): GuestPreparation {
  return {
    env: settings.env,
    default_user: settings.user,
    default_workdir: settings.workdir,
    services: settings.services.map(({ name, command, user, ready }) => ({
      name,
      command,
      user,
      ready_url: ready === undefined ? undefined : `http://127.0.0.1:${ready.port}${ready.path}`,
    })),
  };
}

/** Boots the template cold, waits until the agent is up and locked, and checkpoints it. The rename is the commit. */
export async function bakeGolden(options: {
  rootfsDir: string;
  /** A process that sees `rootfsDir` in its mounts; default: this one does. */
  within?: RootSurroundings | undefined;
  /** The template's environment, user and working directory, with which its shells wait, and its services. */
  settings: Pick<TemplateManifest, "env" | "user" | "workdir" | "services">;
  goldenDir: string;
  driver: Driver;
  slots: Slots;
  limits: MachineLimits;
  diskMib: number;
  signal?: AbortSignal | undefined;
}): Promise<Golden> {
  const { rootfsDir, within, settings, goldenDir, driver, slots, limits, diskMib, signal } = options;
  const unfinished = `${goldenDir}.unfinished`;
  await rm(unfinished, { recursive: true, force: true });
  await mkdir(unfinished, { recursive: true, mode: 0o700 });
  const place = await slots.make(diskMib, "none");
  const guest = new GuestClient(place.address);
  const hostKey = newHostKey();
  try {
    const root = await driver.packRoot(rootfsDir, join(unfinished, ROOT), signal, within);
    const machine = await driver.boot(root, place, limits, signal);
    const { locked } = await guest.waitUntilUp(BOOT_TIMEOUT_MS, signal);
    if (!locked)
      throw new CodedError(
        "internal",
        "the guest agent of a fresh boot is not locked; a golden snapshot of it would hand out an open machine",
      );
    await guest.prepare(
      { ...templatePreparation(settings), services_timeout_ms: SERVICES_TIMEOUT_MS },
      { timeoutMs: PREPARE_TIMEOUT_MS, hostKey },
    );
    await delay(SETTLE_MS);
    guest.close(); // no connection of ours goes into the image
    const image = join(unfinished, IMAGE);
    await driver.checkpoint(machine, image, { signal });
    await Promise.all([...(await readdir(image)).map((name) => sync(join(image, name))), sync(image)]);
    const { name, version, acceleration } = driver.info;
    const manifest: GoldenManifest = {
      driver: name,
      driver_version: version,
      acceleration,
      baked_at: new Date().toISOString(),
      host_key: hostKey,
    };
    await writeFile(join(unfinished, MANIFEST), JSON.stringify(manifest), { mode: 0o600 });
    await mkdir(dirname(goldenDir), { recursive: true });
    await rm(goldenDir, { recursive: true, force: true });
    await rename(unfinished, goldenDir);
  } finally {
    guest.close();
    await slots.clear(place.slot);
    await rm(unfinished, { recursive: true, force: true });
  }
  return { imageDir: join(goldenDir, IMAGE), root: { imagePath: join(goldenDir, ROOT) }, hostKey };
}
