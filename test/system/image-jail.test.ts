import { lstatSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Release } from "@torpor/base";
import { afterAll, beforeAll, expect, test } from "vitest";
import { CgroupTree, systemCgroupMounts } from "../../host/src/cgroup.ts";
import { type BuildSpace, openBuildSpace } from "../../host/src/oci/build-space.ts";
import { openToolGroup, sweepToolGroups } from "../../host/src/oci/tool-group.ts";
import { runContained } from "../../host/src/oci/contained-tool.ts";

const dir = mkdtempSync(join(tmpdir(), "torpor-jail-"));
let space: BuildSpace;
let close: Release;
const cgroups = new CgroupTree(systemCgroupMounts(), `torpor-jail-${process.pid}`);
cgroups.open();
const group = openToolGroup(cgroups);
beforeAll(async () => {
  ({ space, close } = await openBuildSpace(dir, 64 * 1024 ** 2, group.joinFiles));
});
afterAll(async () => {
  await close();
  await sweepToolGroups(cgroups);
  expect([...cgroups.children()]).toEqual([]);
  cgroups.close();
  rmSync(dir, { recursive: true });
});

/** What a shell in the place of one of the tools prints. */
async function said(script: string, { isRemote = false } = {}): Promise<string> {
  await runContained(["/bin/sh", "-c", `${script}; true`], {
    space,
    outputFile: "said",
    network: isRemote,
    unprivileged: isRemote,
    env: {},
    timeoutMs: 30_000,
  });
  const path = join(space.outside, "said");
  return lstatSync(path).isFile() ? readFileSync(path, "utf8") : "";
}

test("a tool that is tricked finds no settings of the kernel, no processes and no secrets of the machine", async () => {
  for (const isRemote of [false, true]) {
    const settings = await said("cd /etc && ls -d * containers/*", { isRemote });
    expect(settings).not.toMatch(/shadow|passwd|machine-id|private|ssh/);
    expect(settings).toContain("containers/policy.json");
    expect(await said("ls /proc /sys 2>&1 | grep -v 'No such file'", { isRemote })).toBe("");
    expect(await said("cat /proc/1/environ >> /work/tmp-x 2>/dev/null && echo read", { isRemote })).toBe("");
    expect(
      await said(
        "for f in /usr/x /etc/x /etc/containers/x /dev/x; do (echo x > $f) && echo $f; done 2>/dev/null",
      ),
    ).toBe("");
  }
});

test("a tool without the network's rights makes no mounts and no way back to the machine", async () => {
  expect(await said("mount -t proc proc /tmp 2>/dev/null && echo mounted; chroot /work /x 2>&1")).toMatch(
    /not permitted/,
  );
  expect(await said("mknod /work/disk b 8 0; cat /work/disk 2>&1")).toMatch(/Permission denied/);
});

test("a link that one tool leaves where the next one's output goes is not followed", async () => {
  const outside = join(dir, "outside");
  writeFileSync(outside, "as it was");
  await said(`rm -f /work/said; ln -s ${outside} /work/said`);
  expect(await said("echo hello")).toBe("hello\n");
  expect(readFileSync(outside, "utf8")).toBe("as it was");
});

test("a tool that takes more memory than it may is ended, and nobody else", async () => {
  group.limit({ cpu: 1, memoryMib: 32, pids: 64 });
  group.withoutSwap(32);
  await expect(said("exec perl -e 'my $x = q(x) x (200 << 20)'")).rejects.toThrow(/perl/);
  expect(group.usage().oomKills).toBeGreaterThan(0);
});
