import {
  AuthenticationError,
  CommandExitError,
  InvalidArgumentError,
  NotFoundError,
  TimeoutError,
} from "e2b";
import { beforeAll, describe, expect, test } from "vitest";
import { useInstance } from "../src/index.ts";
import { e2bClients, e2bSandbox, settles, type E2bSandbox } from "./e2b-sandbox.ts";

const torpor = useInstance({ server: true });

describe.each(e2bClients)("commands of E2B's client $version", (client) => {
  let sandbox: E2bSandbox;
  beforeAll(async () => {
    sandbox = await e2bSandbox(torpor(), client, { envs: { FLAVOUR: "salt", SHADE: "outer" } });
  });

  test("give standard output, standard error and exit code", async () => {
    const result = await sandbox.commands.run("echo out; echo err >&2");
    expect(result).toMatchObject({ exitCode: 0, stdout: "out\n", stderr: "err\n" });
    expect(result.error ?? "").toBe("");
  });

  test("that fail throw with the code, both streams and the words of an exit status", async () => {
    const failure = await sandbox.commands.run("echo a; echo b >&2; exit 7").catch((error: unknown) => error);
    expect((failure as Error).name).toBe("CommandExitError");
    expect(failure).toMatchObject({ exitCode: 7, stdout: "a\n", stderr: "b\n", error: "exit status 7" });
  });

  test("that are no program exit with 127, and a syntax error is the shell's", async () => {
    await expect(sandbox.commands.run("no-such-program-here")).rejects.toMatchObject({ exitCode: 127 });
    await expect(sandbox.commands.run("if then")).rejects.toMatchObject({ exitCode: 2 });
  });

  test("pass any text, many lines and special characters through", async () => {
    const text = "é 😀 'quoted' \"double\" $HOME `x` \\ end";
    const { stdout } = await sandbox.commands.run(`cat <<'EOF'\n${text}\nsecond\nEOF`);
    expect(stdout).toBe(`${text}\nsecond\n`);
  });

  test("give large output whole and in order", async () => {
    const { stdout } = await sandbox.commands.run("seq 1 100000");
    const lines = stdout.trimEnd().split("\n");
    expect(lines).toHaveLength(100_000);
    expect(lines.at(-1)).toBe("100000");
  });

  test("tell output as it comes", async () => {
    const pieces: string[] = [];
    const errors: string[] = [];
    await sandbox.commands.run("echo one; echo bad >&2; sleep 0.3; echo two", {
      onStdout: (piece: string) => void pieces.push(piece),
      onStderr: (piece: string) => void errors.push(piece),
    });
    expect(pieces).toEqual(["one\n", "two\n"]);
    expect(errors).toEqual(["bad\n"]);
  });

  test("run as the sandbox's user at home unless told otherwise", async () => {
    expect((await sandbox.commands.run("whoami; pwd; echo $HOME $USER $LOGNAME")).stdout).toBe(
      "user\n/home/user\n/home/user user user\n",
    );
  });

  test("run as root and as the user by name", async () => {
    expect((await sandbox.commands.run("whoami; echo $HOME", { user: "root" })).stdout).toBe("root\n/root\n");
    expect((await sandbox.commands.run("id -un", { user: "user" })).stdout).toBe("user\n");
  });

  test("of a user there is not are refused by name", async () => {
    const refused = sandbox.commands.run("whoami", { user: "nobody123" });
    await expect(refused).rejects.toThrow("invalid username: 'nobody123'");
    await expect(sandbox.commands.run("whoami", { user: "nobody123" })).rejects.toMatchObject({
      name: AuthenticationError.name,
    });
  });

  test("run in the folder asked for, relative ones at home", async () => {
    expect((await sandbox.commands.run("pwd", { cwd: "/tmp" })).stdout).toBe("/tmp\n");
    await sandbox.files.makeDir("place");
    expect((await sandbox.commands.run("pwd", { cwd: "place" })).stdout).toBe("/home/user/place\n");
    expect((await sandbox.commands.run("pwd", { cwd: "~/place" })).stdout).toBe("/home/user/place\n");
  });

  test("in a folder there is not are refused in E2B's words", async () => {
    const refused = await sandbox.commands.run("pwd", { cwd: "/not/there" }).catch((error: unknown) => error);
    expect((refused as Error).name).toBe(InvalidArgumentError.name);
    expect((refused as Error).message).toContain("cwd '/not/there' does not exist");
  });

  test("see the sandbox's variables, and their own before them", async () => {
    const { stdout } = await sandbox.commands.run("echo $FLAVOUR $SHADE $OWN", {
      envs: { SHADE: "inner", OWN: "x y" },
    });
    expect(stdout).toBe("salt inner x y\n");
    expect((await sandbox.commands.run("echo $SHADE[$OWN]")).stdout).toBe("outer[]\n");
  });

  test("know that they are in an E2B sandbox, and in which", async () => {
    const { stdout } = await sandbox.commands.run(
      'echo "$E2B_SANDBOX $E2B_SANDBOX_ID"; test -n "$E2B_TEMPLATE_ID"',
    );
    expect(stdout).toBe(`true ${sandbox.sandboxId}\n`);
  });

  test("have no input unless they ask for it", async () => {
    expect((await sandbox.commands.run("cat; echo end")).stdout).toBe("end\n");
  });

  test("that ran too long are killed, with what they started", async () => {
    const late = sandbox.commands.run("sleep 301 & sleep 301", { timeoutMs: 500 });
    await expect(late).rejects.toMatchObject({ name: TimeoutError.name });
    await settles(async () => {
      expect((await sandbox.commands.run("pgrep -cx sleep || true")).stdout.trim()).toBe("0");
    });
  });

  test("are not ended by a time limit of zero", async () => {
    expect((await sandbox.commands.run("sleep 0.2; echo done", { timeoutMs: 0 })).stdout).toBe("done\n");
  });

  test("end after what they left in the background has closed their output", async () => {
    expect((await sandbox.commands.run("(sleep 0.4; echo late) & echo early")).stdout).toBe("early\nlate\n");
  });

  describe("in the background", () => {
    test("are waited for by their handle", async () => {
      const command = await sandbox.commands.run("sleep 0.2; echo later", { background: true });
      expect(command.pid).toBeGreaterThan(1);
      expect(command.exitCode).toBeUndefined();
      expect((await command.wait()).stdout).toBe("later\n");
      expect(command.exitCode).toBe(0);
    });

    test("are listed with their configuration while they run", async () => {
      const command = await sandbox.commands.run("sleep 60", {
        background: true,
        envs: { A: "b" },
        cwd: "/tmp",
      });
      const listed = (await sandbox.commands.list()).find(({ pid }) => pid === command.pid);
      expect(listed).toMatchObject({
        cmd: "/bin/bash",
        args: ["-l", "-c", "sleep 60"],
        envs: { A: "b" },
        cwd: "/tmp",
      });
      await command.kill();
      await settles(async () => {
        expect((await sandbox.commands.list()).some(({ pid }) => pid === command.pid)).toBe(false);
      });
    });

    test("are killed with all that they started", async () => {
      const command = await sandbox.commands.run("(trap '' TERM; sleep 302) & sleep 302", {
        background: true,
      });
      await settles(async () => {
        expect((await sandbox.commands.run("pgrep -cx sleep")).stdout.trim()).toBe("2");
      });
      expect(await command.kill()).toBe(true);
      await expect(command.wait()).rejects.toMatchObject({ exitCode: -1, error: "signal: killed" });
      expect(
        (
          await sandbox.commands
            .run(`pgrep -cx sleep; kill -0 ${command.pid} 2>&1 || true`)
            .catch((error: unknown) => error as CommandExitError)
        ).stdout,
      ).toMatch(/^0\n/);
      expect(await sandbox.commands.kill(command.pid)).toBe(false);
    });

    test("that are not there cannot be killed, which is no error", async () => {
      expect(await sandbox.commands.kill(999_999)).toBe(false);
    });

    test("go on when their client disconnects, and give only what is new to the next", async () => {
      const first = await sandbox.commands.run("echo one; sleep 1; echo two; exit 3", {
        background: true,
        timeoutMs: 0,
      });
      await settles(() => expect(first.stdout).toBe("one\n"));
      await first.disconnect();
      const second = await sandbox.commands.connect(first.pid);
      expect(second.pid).toBe(first.pid);
      await expect(second.wait()).rejects.toMatchObject({ exitCode: 3, stdout: "two\n" });
    });

    test("have several clients at once", async () => {
      const first = await sandbox.commands.run("read -r line; echo got $line", {
        background: true,
        stdin: true,
      });
      const second = await sandbox.commands.connect(first.pid);
      await second.sendStdin("word\n");
      expect((await first.wait()).stdout).toBe("got word\n");
      expect((await second.wait()).stdout).toBe("got word\n");
    });

    test("tell their end to who comes a little later", async () => {
      const command = await sandbox.commands.run("exit 5", { background: true });
      await command.wait().catch(() => undefined);
      const late = await sandbox.commands.connect(command.pid);
      await expect(late.wait()).rejects.toMatchObject({ exitCode: 5 });
    });

    test("that are not there cannot be connected to", async () => {
      await expect(sandbox.commands.connect(999_999)).rejects.toMatchObject({ name: NotFoundError.name });
      await expect(sandbox.commands.connect(999_999)).rejects.toThrow("process with pid 999999 not found");
    });
  });

  describe("with input", () => {
    test("read what is sent, text and bytes, until it is closed", async () => {
      const command = await sandbox.commands.run("cat", { background: true, stdin: true });
      await sandbox.commands.sendStdin(command.pid, "text ");
      await command.sendStdin(new TextEncoder().encode("bytes é"));
      await command.closeStdin();
      await sandbox.commands.closeStdin(command.pid).catch(() => undefined); // twice is fine, unless it has ended
      expect((await command.wait()).stdout).toBe("text bytes é");
    });

    test("take an empty piece, and one larger than a pipe", async () => {
      const command = await sandbox.commands.run("wc -c", { background: true, stdin: true });
      await command.sendStdin("");
      await command.sendStdin("x".repeat(300_000));
      await command.closeStdin();
      expect((await command.wait()).stdout.trim()).toBe("300000");
    });

    test("refuse it when it was not enabled, or is closed", async () => {
      const without = await sandbox.commands.run("sleep 60", { background: true });
      await expect(sandbox.commands.sendStdin(without.pid, "x")).rejects.toThrow(
        "stdin not enabled or closed",
      );
      await without.kill();
      const closed = await sandbox.commands.run("sleep 60", { background: true, stdin: true });
      await closed.closeStdin();
      await closed.closeStdin();
      await expect(closed.sendStdin("x")).rejects.toThrow("stdin not enabled or closed");
      await closed.kill();
    });

    test("that are over take none", async () => {
      await expect(sandbox.commands.sendStdin(999_999, "x")).rejects.toMatchObject({
        name: NotFoundError.name,
      });
    });
  });
});
