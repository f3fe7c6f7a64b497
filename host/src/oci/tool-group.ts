import { randomBytes } from "node:crypto";
import { availableParallelism } from "node:os";
import type { Cgroup, CgroupTree } from "../cgroup.ts";

const PREFIX = "image-";
/** Many times what the tools take for images that people make; what reaches it is made to. */
const MEMORY_MIB = 1024;
const PIDS = 256;

/** A cgroup for the tools that read one image: of bounded memory, and behind everybody else who wants the CPU. */
export function openToolGroup(cgroups: Pick<CgroupTree, "group">): Cgroup {
  const group = cgroups.group(`${PREFIX}${randomBytes(6).toString("hex")}`);
  group.create({ cpu: availableParallelism(), memoryMib: MEMORY_MIB, pids: PIDS });
  group.withoutSwap(MEMORY_MIB);
  group.yieldCpu();
  return group;
}

/** To be called at start: removes the groups that a dead host left. */
export async function sweepToolGroups(cgroups: CgroupTree): Promise<void> {
  for (const child of cgroups.children()) if (child.startsWith(PREFIX)) await cgroups.group(child).destroy();
}
