import { beforeAll, describe, expect, test } from "vitest";
import { useInstance } from "../src/index.ts";
import { e2bClients, e2bSandbox, type E2bSandbox } from "./e2b-sandbox.ts";

const torpor = useInstance({ server: true });

describe.each(e2bClients)("git of E2B's client $version", (client) => {
  let sandbox: E2bSandbox;
  beforeAll(async () => {
    sandbox = await e2bSandbox(torpor(), client);
    await sandbox.git.configureUser("Ada", "ada@example.com");
    await sandbox.git.init("repo", { initialBranch: "main" });
  });

  test("keeps settings, of the user and of a repository", async () => {
    expect(await sandbox.git.getConfig("user.name")).toBe("Ada");
    await sandbox.git.setConfig("pull.rebase", "false", { scope: "local", path: "repo" });
    expect(await sandbox.git.getConfig("pull.rebase", { scope: "local", path: "repo" })).toBe("false");
    expect(await sandbox.git.getConfig("no.such")).toBeUndefined();
  });

  test("tells what is untracked, staged and committed", async () => {
    expect(await sandbox.git.status("repo")).toMatchObject({ currentBranch: "main", isClean: true });
    await sandbox.files.write("repo/a.txt", "1\n");
    expect(await sandbox.git.status("repo")).toMatchObject({ hasUntracked: true, untrackedCount: 1 });
    await sandbox.git.add("repo");
    expect(await sandbox.git.status("repo")).toMatchObject({
      hasStaged: true,
      fileStatus: [{ name: "a.txt", status: "added", staged: true }],
    });
    await sandbox.git.commit("repo", "first one", { authorName: "Grace", authorEmail: "grace@example.com" });
    expect((await sandbox.commands.run("git -C repo log --format='%an %s'")).stdout).toBe(
      "Grace first one\n",
    );
    expect((await sandbox.git.status("repo")).isClean).toBe(true);
  });

  test("makes, lists, changes and deletes branches", async () => {
    await sandbox.git.createBranch("repo", "side");
    expect(await sandbox.git.branches("repo")).toEqual({ branches: ["main", "side"], currentBranch: "side" });
    await sandbox.git.checkoutBranch("repo", "main");
    await sandbox.git.deleteBranch("repo", "side", { force: true });
    expect((await sandbox.git.branches("repo")).branches).toEqual(["main"]);
  });

  test("takes changes back", async () => {
    await sandbox.files.write("repo/a.txt", "changed\n");
    await sandbox.git.add("repo", { files: ["a.txt"] });
    await sandbox.git.restore("repo", { paths: ["a.txt"], staged: true });
    expect(await sandbox.git.status("repo")).toMatchObject({ hasStaged: false, hasChanges: true });
    await sandbox.git.reset("repo", { mode: "hard", target: "HEAD" });
    expect(await sandbox.files.read("repo/a.txt")).toBe("1\n");
  });

  test("clones, pushes and pulls", async () => {
    await sandbox.git.init("shared.git", { bare: true, initialBranch: "main" });
    await sandbox.git.remoteAdd("repo", "origin", "/home/user/shared.git");
    expect(await sandbox.git.remoteGet("repo", "origin")).toBe("/home/user/shared.git");
    expect(await sandbox.git.remoteGet("repo", "other")).toBeUndefined();
    await sandbox.git.push("repo", { remote: "origin", branch: "main" });
    await sandbox.git.clone("/home/user/shared.git", { path: "copy" });
    await sandbox.files.write("copy/b.txt", "2\n");
    await sandbox.git.add("copy");
    await sandbox.git.commit("copy", "second");
    expect(await sandbox.git.status("copy")).toMatchObject({ ahead: 1, behind: 0, upstream: "origin/main" });
    await sandbox.git.push("copy");
    await sandbox.git.pull("repo");
    expect(await sandbox.files.read("repo/b.txt")).toBe("2\n");
  });

  test("says what is missing", async () => {
    await sandbox.git.init("alone", { initialBranch: "main" });
    await expect(sandbox.git.pull("alone")).rejects.toMatchObject({ name: "GitUpstreamError" });
    await expect(sandbox.git.clone("/not/there")).rejects.toMatchObject({ exitCode: 128 });
    await expect(sandbox.git.status("/tmp")).rejects.toMatchObject({ exitCode: 128 });
  });
});
