import { randomBytes } from "node:crypto";
import { readlinkSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { basename, join } from "node:path";
import type { MachineRoot } from "../../host/src/driver/driver.ts";
import { CgroupTree, systemCgroupMounts } from "../../host/src/cgroup.ts";
import { GvisorDriver, netSysctlsMustHide } from "../../host/src/driver/gvisor/gvisor-driver.ts";
import { findRunsc, inspectRunsc } from "../../host/src/driver/gvisor/runsc.ts";
import { instanceNames } from "../../host/src/instance.ts";
import { Slots } from "../../host/src/machine/slots.ts";
import { Router } from "../../host/src/network/router.ts";
import { minimalHostEnv } from "../src/end-instance.ts";
import { keeper } from "../src/keeper-client.ts";
import { templateCacheDir } from "../src/repository.ts";

/** Router, cgroups, gVisor and slots of an instance, without the host program around them. */
export interface GvisorBed {
  router: Router;
  driver: GvisorDriver;
  slots: Slots;
  root: MachineRoot;
  close(): Promise<void>;
}

export async function openGvisorBed(
  stateDir: string,
  options: { resolvers?: readonly string[] } = {},
): Promise<GvisorBed> {
  const instance = instanceNames(stateDir);
  // Should this process die, a host started on the same directory sweeps away what the bed had made.
  const hostToken = randomBytes(16).toString("hex");
  const ending = { stateDir, hostToken, hostEnv: minimalHostEnv(stateDir, hostToken) };
  await mkdir(join(stateDir, "logs"));
  keeper.watch(ending);
  const router = await Router.open({ instance, resolvers: options.resolvers ?? [], egress: new Map() });
  const cgroups = new CgroupTree(systemCgroupMounts(), instance.cgroup);
  cgroups.open();
  const driver = new GvisorDriver({
    runsc: await inspectRunsc(findRunsc(undefined)),
    platform: "systrap",
    cgroups,
    cacheDir: join(stateDir, "disks"),
    spareDir: join(stateDir, "spare"),
    hideNetSysctls: await netSysctlsMustHide(instance.routerNetns),
  });
  driver.keepReady();
  await mkdir(join(stateDir, "host"));
  const slots = new Slots({
    router,
    driver,
    cgroups,
    directory: join(stateDir, "host", "machines"),
    netnsOf: (slot) => instance.slotNetns(slot),
  });
  const templates = templateCacheDir();
  const base = join(templates, basename(readlinkSync(join(templates, "by-name", "base"))));
  return {
    router,
    driver,
    slots,
    root: { imagePath: join(base, "golden", "gvisor-systrap", "root.img") },
    close: async () => {
      await slots.sweep();
      await driver.close();
      await router.remove();
      cgroups.close();
      keeper.forget(ending);
    },
  };
}
