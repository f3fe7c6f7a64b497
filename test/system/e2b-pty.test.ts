import { NotFoundError } from "e2b";
import { beforeAll, describe, expect, test } from "vitest";
import { useInstance } from "../src/index.ts";
import { e2bClients, e2bSandbox, settles, type E2bSandbox } from "./e2b-sandbox.ts";

const torpor = useInstance({ server: true });

describe.each(e2bClients)("terminals of E2B's client $version", (client) => {
  let sandbox: E2bSandbox;
  beforeAll(async () => {
    sandbox = await e2bSandbox(torpor(), client);
  });

  async function terminal(
    options: { cwd?: string; envs?: Record<string, string>; user?: string; timeoutMs?: number } = {},
  ) {
    const decoder = new TextDecoder();
    const screen = { text: "" };
    const handle = await sandbox.pty.create({
      cols: 80,
      rows: 24,
      timeoutMs: 0,
      ...options,
      onData: (data: Uint8Array) => void (screen.text += decoder.decode(data, { stream: true })),
    });
    const type = (text: string) => sandbox.pty.sendInput(handle.pid, new TextEncoder().encode(text));
    const shows = (text: string | RegExp) => settles(() => expect(screen.text).toMatch(text));
    return { handle, screen, type, shows };
  }

  test("are shells on a real terminal of the size asked for", async () => {
    const { handle, type, shows } = await terminal();
    await type("tty; stty size; echo $TERM-$LANG; exit 4\n");
    await shows(/\/dev\/pts\/\d+/);
    await shows(/24 80/);
    await shows("xterm-256color-C.UTF-8");
    await expect(handle.wait()).rejects.toMatchObject({ exitCode: 4 });
  });

  test("take variables, a folder and a user", async () => {
    const { handle, type, shows } = await terminal({ cwd: "/tmp", envs: { WORD: "pumpkin" }, user: "root" });
    await type("echo $WORD:$PWD:$(whoami)\n");
    await shows("pumpkin:/tmp:root");
    await handle.kill();
  });

  test("are resized", async () => {
    const { handle, type, shows } = await terminal();
    await sandbox.pty.resize(handle.pid, { cols: 101, rows: 33 });
    await type("stty size\n");
    await shows("33 101");
    await handle.kill();
  });

  test("turn Ctrl+C into an interrupt of what runs, not of the shell", async () => {
    const { handle, type, shows } = await terminal();
    await type("echo be''gin; sleep 303\n");
    await shows("begin");
    // What arrives before bash has handed the terminal over interrupts nothing, as on any Linux.
    await settles(async () =>
      expect((await sandbox.commands.run("cat /proc/[0-9]*/comm")).stdout).toMatch(/^sleep$/m),
    );
    await type("\u0003");
    await type("echo aft''er\n");
    await shows("after");
    await handle.kill();
  });

  test("go on without their client and are connected to again", async () => {
    const { handle, type } = await terminal();
    await type("KEPT=yes\n");
    await handle.disconnect();
    let text = "";
    const again = await sandbox.pty.connect(handle.pid, {
      timeoutMs: 0,
      onData: (data: Uint8Array) => void (text += new TextDecoder().decode(data)),
    });
    await sandbox.pty.sendInput(handle.pid, new TextEncoder().encode("echo still:$KEPT\n"));
    await settles(() => expect(text).toContain("still:yes"));
    expect(await sandbox.pty.kill(handle.pid)).toBe(true);
    await expect(again.wait()).rejects.toMatchObject({ exitCode: -1 });
  });

  test("are listed, killed once, and then not there", async () => {
    const { handle } = await terminal();
    const listed = (await sandbox.commands.list()).find(({ pid }) => pid === handle.pid);
    expect(listed).toMatchObject({ cmd: "/bin/bash", args: ["-i", "-l"] });
    expect(await sandbox.pty.kill(handle.pid)).toBe(true);
    await expect(handle.wait()).rejects.toMatchObject({ error: "signal: killed" });
    expect(await sandbox.pty.kill(handle.pid)).toBe(false);
    await expect(sandbox.pty.sendInput(handle.pid, new Uint8Array([1]))).rejects.toMatchObject({
      name: NotFoundError.name,
    });
    await expect(sandbox.pty.resize(handle.pid, { cols: 1, rows: 1 })).rejects.toMatchObject({
      name: NotFoundError.name,
    });
  });

  test("end at Ctrl+D", async () => {
    const { handle, type, shows } = await terminal();
    await type("echo re''ady\n");
    await shows("ready");
    await type("\u0004");
    expect(await handle.wait()).toMatchObject({ exitCode: 0 });
  });
});
