import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { text } from "node:stream/consumers";
import { Sandbox, type SandboxEvent, Torpor, verifyWebhook } from "@torpor/sdk";
import { describe, expect, test } from "vitest";
import { eventually } from "../src/eventually.ts";
import { useInstance } from "../src/use-instance.ts";

/** Serves on loopback, and asks itself and the agent all the time; counts how often. */
const OWN_CALLER = `
import http.server, threading, time, urllib.error, urllib.request
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8123), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
calls = 0
while True:
    for url, body in (
        ("http://127.0.0.1:8123/", None),
        ("http://127.0.0.1:49983/health", None),
        ("http://127.0.0.1:49983/process.Process/List", b"{}"),
    ):
        try:
            urllib.request.urlopen(urllib.request.Request(url, body, {"content-type": "application/json"}), timeout=5).read()
        except urllib.error.HTTPError:
            pass  # refused is asked, too
        except OSError:
            continue
        calls += 1
    open("/tmp/calls", "w").write(str(calls))
    time.sleep(0.05)
`;

describe("what keeps a sandbox awake", () => {
  const torpor = useInstance({ server: true, pool: 1, env: { TORPOR_WEBHOOK_ALLOW: "127.0.0.1" } });
  const connection = (): { url: string; apiKey: string } => ({ url: torpor().url, apiKey: torpor().apiKey });
  const idleAfter = (idleTimeoutSeconds: number): Promise<Sandbox> =>
    Sandbox.create({
      template: "base",
      persistent: true,
      tenant: "acme",
      idleTimeoutSeconds,
      ...connection(),
    });
  const asleep = (sandbox: Sandbox): Promise<unknown> =>
    eventually("it to fall asleep", async () => (await sandbox.refresh()).state === "hibernated", 60_000);

  test("a command that runs longer than the idle time completes; then it sleeps", async () => {
    await using sandbox = await idleAfter(1);
    const startedAt = performance.now();
    const result = await sandbox.exec("sleep 4; echo done");
    expect(result).toMatchObject({ stdout: "done\n", exitCode: 0, outcome: "exited" });
    expect(performance.now() - startedAt).toBeGreaterThan(3_900);
    expect(sandbox.info.generation).toBe(1);
    await asleep(sandbox);
    expect(sandbox.info.generation).toBe(1); // it had not slept before
  });

  test("a loop inside that calls services of its own and the agent keeps nothing awake", async () => {
    await using sandbox = await idleAfter(2);
    await sandbox.files.write("/tmp/caller.py", OWN_CALLER);
    await sandbox.exec("cd /tmp; setsid python3 /tmp/caller.py > /tmp/log 2>&1 < /dev/null &");
    await asleep(sandbox);
    const calls = Number(await sandbox.files.read("/tmp/calls"));
    expect(calls).toBeGreaterThan(10); // so it was at it until then
    expect((await sandbox.refresh()).generation).toBe(2);
  });

  test("its end reaches a webhook, whose request proves itself", async () => {
    const events: SandboxEvent[] = [];
    let secret = "";
    const refused: unknown[] = [];
    const receiver = createServer((request, response) => {
      void (async () => {
        try {
          events.push(await verifyWebhook(await text(request), request.headers, secret));
          response.writeHead(204).end();
        } catch (error) {
          refused.push(error);
          response.writeHead(401).end();
        }
      })();
    });
    await new Promise<void>((resolve) => receiver.listen(0, "127.0.0.1", resolve));
    try {
      const { webhooks } = new Torpor(connection());
      const { port } = receiver.address() as AddressInfo;
      const webhook = await webhooks.create({
        url: `http://127.0.0.1:${port}/hook`,
        types: ["sandbox.destroyed"],
      });
      ({ secret } = webhook);
      const sandbox = await idleAfter(60);
      await sandbox.destroy();
      await eventually("the event", () => events.length > 0, 60_000);
      expect(events[0]).toMatchObject({ sandboxId: sandbox.id, type: "sandbox.destroyed", reason: "user" });
      expect(refused).toEqual([]);
      await eventually(
        "the delivery to be counted",
        async () => (await webhooks.get(webhook.id)).lastDeliveredAt !== null,
        30_000,
      );
      expect(await webhooks.delete(webhook.id)).toBe(true);
    } finally {
      receiver.closeAllConnections();
      await new Promise((resolve) => receiver.close(resolve));
    }
  });
});
