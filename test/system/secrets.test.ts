import { readdirSync, readFileSync, realpathSync } from "node:fs";
import { join, relative } from "node:path";
import { run } from "@torpor/base";
import { Torpor } from "@torpor/sdk";
import { expect, test } from "vitest";
import { eventually } from "../src/eventually.ts";
import { filesThatHold } from "../src/needle-search.ts";
import { useInstance } from "../src/use-instance.ts";

const torpor = useInstance({ server: true, pool: 1, shells: 1, env: { TORPOR_LOG_LEVEL: "debug" } });
/** Unlike anything else that could stand on this machine. */
const mark = (name: string): string => `secret-${name}-${process.pid}-${Date.now().toString(36)}`;

/**
 * Files of the instance, relative to its state directory, but for the memory and files of sandboxes themselves: a
 * program that is given a secret has it in its memory.
 */
function filesOfTheInstance(stateDir: string): string[] {
  return readdirSync(stateDir, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name))
    .filter((path) => !/\/(images\/[^/]+\/data|machines\/[^/]+)\/(?!.*(config\.json|console))/.test(path));
}

test("a secret is there after every restore, and in nothing that the instance writes or shows", async () => {
  const { stateDir, url, apiKey } = torpor();
  const [value, changed] = [mark("one"), mark("two")];
  const admin = new Torpor({ url, apiKey });
  const { key } = await admin.keys.create({ name: "ours", tenant: "acme" });
  const client = new Torpor({ url, apiKey: key });

  const sandbox = await client.sandboxes.create({
    template: "base",
    tenant: "acme",
    persistent: true,
    env: { TOKEN: "plain" },
    secrets: { TOKEN: value },
  });
  const token = async (of = sandbox): Promise<string> =>
    (await of.exec('printf %s "$TOKEN"', { timeoutSeconds: 60 })).stdout;
  expect(await token()).toBe(value);
  const told = (): string[] =>
    filesOfTheInstance(stateDir)
      .filter((path) => {
        const bytes = contentOf(path);
        const isKeyFile = path === join(stateDir, "api-key");
        return [value, changed, key, ...(isKeyFile ? [] : [apiKey])].some((secret) => bytes.includes(secret));
      })
      .map((path) => relative(stateDir, path));
  expect(told()).toEqual([]);
  await sandbox.hibernate();
  expect(told()).toEqual([]);
  await sandbox.wake();
  expect(await token()).toBe(value);
  const { children } = await sandbox.fork({ count: 1, secrets: { TOKEN: changed } });
  const [child] = children;
  if (child === undefined) throw new Error("the fork made no child");
  expect([await token(child), await token()]).toEqual([changed, value]);
  const snapshot = await sandbox.snapshot({ name: "with a secret" });
  const copy = await client.sandboxes.create({ fromSnapshot: snapshot.id, tenant: "acme" });
  expect(await token(copy)).toBe(value);
  await copy.hibernate();
  await torpor().killHost();
  await torpor().startHost();
  await eventually("the copy wakes with its secret", async () => (await token(copy)) === value, 60_000);
  expect(told()).toEqual([]);

  const shown = [
    ...(await client.sandboxes.list().toArray()),
    ...(await client.snapshots.list().toArray()),
    await admin.keys.list(),
    await sandbox.lifecycle(),
  ];
  const console = await fetch(`${url}/v1/sandboxes/${sandbox.id}/logs`, {
    headers: { authorization: `Bearer ${key}` },
  });
  const events = await fetch(`${url}/v1/events?after=oldest&follow=false`, {
    headers: { authorization: `Bearer ${apiKey}` },
  });
  const said =
    JSON.stringify(shown) +
    (await events.text()) +
    (await console.text()) +
    torpor().log("host") +
    torpor().log("server");
  for (const secret of [value, changed, key, apiKey]) expect(said).not.toContain(secret);

  const listed = await run(["ps", "axww", "-o", "args"]);
  for (const secret of [value, changed, key, apiKey]) expect(listed.stdout).not.toContain(secret);

  for (const one of [sandbox, child, copy]) await one.destroy();
  await client.snapshots.delete(snapshot.id);
  // With the sandboxes and the snapshot their memory is gone too: now nothing at all may hold it, templates included.
  // Trees that were packed before any sandbox was are left out.
  const holding = (folder: string): string[] => filesThatHold(folder, value, "root.img").found;
  await eventually(
    "nothing holds it any more",
    () => ["images", "machines"].every((name) => holding(join(stateDir, "host", name)).length === 0),
    60_000,
  );
  const templates = realpathSync(join(stateDir, "host", "templates"));
  for (const hash of readdirSync(templates).filter((name) => /^[0-9a-f]{64}$/.test(name)))
    expect(holding(join(templates, hash, "golden"))).toEqual([]);
});

/** Empty for one that has gone meanwhile. */
function contentOf(path: string): Buffer {
  try {
    return readFileSync(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return Buffer.alloc(0);
    throw error;
  }
}
