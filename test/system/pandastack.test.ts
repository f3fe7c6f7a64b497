import { Client } from "@pandastack/sdk";
import { describe, expect, test } from "vitest";
import { useInstance } from "../src/use-instance.ts";

describe("a published client of another such service, unmodified, with our URL and key", () => {
  const torpor = useInstance({ server: true });

  test("creates a sandbox, execs in it, writes and reads a file, and kills it", async () => {
    const client = new Client({ apiUrl: torpor().url, apiKey: torpor().apiKey });
    const sandbox = await client.sandboxes.create({
      template: "base",
      ttlSeconds: 300,
      metadata: { app: "demo" },
    });
    expect(sandbox.id).toMatch(/^[a-z0-9]{20,}$/);
    expect(await sandbox.exec("echo out; echo err >&2; exit 3", { timeoutSeconds: 20 })).toMatchObject({
      stdout: "out\n",
      stderr: "err\n",
      exit_code: 3,
      exitCode: 3,
    });
    await sandbox.filesystem.write("/workspace/hello.txt", "hello, grüß dich");
    expect(await sandbox.filesystem.read("/workspace/hello.txt")).toBe("hello, grüß dich");
    expect((await sandbox.exec("cat /workspace/hello.txt")).stdout).toBe("hello, grüß dich");
    expect((await client.sandboxes.list()).map(({ id }) => id)).toContain(sandbox.id);
    await sandbox.kill();
    expect((await torpor().host.get(sandbox.id)).reason).toBe("user");
    await expect(sandbox.exec("true")).rejects.toThrow();
  });
});
