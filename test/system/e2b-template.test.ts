import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  BuildError,
  defaultBuildLogger,
  type LogEntry,
  Sandbox,
  Template,
  waitForFile,
  waitForURL,
} from "e2b";
import { Sandbox as Sandbox245, Template as Template245, waitForPort as waitForPort245 } from "e2b-2.45";
import { Torpor } from "@torpor/sdk";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { e2bOptions, eventually, useInstance } from "../src/index.ts";

/** Where the builder finds what COPY names. */
const context = mkdtempSync(join(tmpdir(), "e2b-context-"));

beforeAll(() => {
  mkdirSync(join(context, "site", "assets"), { recursive: true });
  mkdirSync(join(context, "notes"));
  writeFileSync(join(context, "greeting.txt"), "hello");
  writeFileSync(join(context, "secret.txt"), "mine");
  writeFileSync(join(context, "site", "index.html"), "<p>home</p>");
  writeFileSync(join(context, "site", "assets", "style.css"), "p {}");
  writeFileSync(join(context, "notes", "one.md"), "1");
  writeFileSync(join(context, "notes", "two.md"), "2");
  writeFileSync(join(context, "notes", "three.txt"), "3");
  symlinkSync("index.html", join(context, "site", "link.html"));
});
afterAll(() => rmSync(context, { recursive: true, force: true }));

describe("templates built with E2B's published builder", () => {
  const torpor = useInstance({ server: true, env: { TORPOR_IMAGE_REGISTRIES: "127.0.0.1:1" } });
  const options = () => e2bOptions(torpor());
  const client = () => new Torpor({ url: torpor().url, apiKey: torpor().apiKey });
  const builder = () => Template({ fileContextPath: context });

  /** One template with every kind of step, built once. */
  let built: ReturnType<typeof buildApp> | undefined;
  const app = () => (built ??= buildApp());
  async function buildApp() {
    const log: LogEntry[] = [];
    const template = builder()
      .fromBaseImage()
      .runCmd('echo "${COLOUR:-none}" > /tmp/colour-before')
      .setEnvs({ COLOUR: "blue", WITH_PATH: "$PATH:/opt/tools" })
      .runCmd(['echo "$COLOUR" > /tmp/colour-after', "echo this is said"])
      .setWorkdir("/app")
      .copy("greeting.txt", ".")
      .copy("site", "site")
      .copy("notes/*.md", "docs")
      .copy("secret.txt", "/opt/secret/it", { user: "root", mode: 0o600 })
      .setWorkdir("inner")
      .setUser("worker")
      .runCmd("pwd > /tmp/where; id -un > /tmp/who")
      .runCmd("id -un > /tmp/asked", { user: "root" })
      .setStartCmd(
        "touch /tmp/started; exec python3 -m http.server 8123 --directory /app/site",
        waitForURL("http://localhost:8123/index.html"),
      );
    const info = await Template.build(template, "app", {
      ...options(),
      cpuCount: 2,
      memoryMB: 512,
      onBuildLogs: (entry) => log.push(entry),
    });
    return { info, log };
  }
  /** A sandbox of it, for all that only look. */
  let looked: Promise<Sandbox> | undefined;
  const sandbox = () =>
    (looked ??= app().then(async () => await Sandbox.create("app", { ...options(), timeoutMs: 600_000 })));
  const shell = async (command: string): Promise<string> =>
    (await (await sandbox()).commands.run(command)).stdout.trim();

  /** Why a build fails. */
  const failure = async (template: Parameters<typeof Template.build>[0], name: string): Promise<Error> =>
    await Template.build(template, name, options()).then(
      () => expect.fail("the build did not fail"),
      (error: Error) => error,
    );

  test("a build answers with the ids and the tags of what it made", async () => {
    const { info } = await app();
    expect(info).toMatchObject({ name: "app", tags: ["default"] });
    expect(info.templateId).toMatch(/^[a-z0-9]{20}$/);
    expect(info.buildId).toMatch(/^[a-z0-9]+$/);
  });

  test("a build tells its steps and what they say, while it goes on", async () => {
    const { log } = await app();
    const messages = log.map(({ message }) => message);
    expect(messages).toContainEqual(expect.stringContaining("[builder 3/12] [stdout]: this is said"));
    expect(messages).toContainEqual(expect.stringContaining("[base] FROM e2bdev/base"));
    const first = log.findIndex(({ message }) => message.includes("[builder 1/12]"));
    const last = log.findIndex(({ message }) => message.includes("[finalize] ready"));
    expect(first).toBeGreaterThan(0);
    expect(last).toBeGreaterThan(first);
  });

  test("a step sees the environment of the steps before it, and none of those after it", async () => {
    expect(await shell("cat /tmp/colour-before /tmp/colour-after")).toBe("none\nblue");
  });

  test("a sandbox has the template's environment, working directory and user", async () => {
    expect(await shell('echo "$COLOUR"; pwd; id -un')).toBe("blue\n/app/inner\nworker");
    expect(await shell('echo "$WITH_PATH"')).toMatch(/\/usr\/bin.*:\/opt\/tools$/);
  });

  test("what a create gives as environment comes before the template's", async () => {
    const other = await Sandbox.create("app", { ...options(), envs: { COLOUR: "red" } });
    expect((await other.commands.run('echo "$COLOUR"')).stdout).toBe("red\n");
    expect(other.sandboxId).not.toBe((await sandbox()).sandboxId);
    await other.kill();
  });

  test("commands run as the user of their step, in its working directory", async () => {
    expect(await shell("cat /tmp/where /tmp/who; sudo cat /tmp/asked")).toBe("/app/inner\nworker\nroot");
  });

  test("COPY merges folders, takes links as links, and files of a pattern into a folder", async () => {
    expect(await shell("cd /app && find . -type f -o -type l | sort")).toBe(
      [
        "docs/one.md",
        "docs/two.md",
        "greeting.txt",
        "site/assets/style.css",
        "site/index.html",
        "site/link.html",
      ]
        .map((name) => `./${name}`)
        .join("\n"),
    );
    expect(await shell("readlink /app/site/link.html; cat /app/greeting.txt")).toBe("index.html\nhello");
  });

  test("COPY gives files to the current user, or to the one and with the mode that it names", async () => {
    expect(
      await shell(
        "stat -c %U:%G /app /app/greeting.txt /app/site/assets; sudo stat -c '%U %a' /opt/secret/it",
      ),
    ).toBe("user:user\nuser:user\nuser:user\nroot 600");
  });

  test("the start command runs in every sandbox of the template, from its first moment on", async () => {
    const both = await Promise.all([1, 2].map(() => Sandbox.create("app", options())));
    for (const made of both)
      expect((await made.commands.run("curl -s localhost:8123/index.html")).stdout).toBe("<p>home</p>");
    await Promise.all(both.map((made) => made.kill()));
  });

  test("the start command is started anew in a sandbox that wakes from its files alone", async () => {
    await app();
    const made = await Sandbox.create("app", { ...options(), envs: { MINE: "too" } });
    const ours = await client().sandboxes.get(made.sandboxId);
    await ours.hibernate({ memory: false });
    await ours.wake();
    const page = await eventually("what it serves", async () => {
      return (await made.commands.run("curl -sf localhost:8123/index.html")).stdout;
    });
    expect(page).toBe("<p>home</p>");
    expect(await made.commands.run("pgrep -cf '^python3 -m http.server'")).toMatchObject({ stdout: "1\n" });
    expect(
      (await made.commands.run("tr '\\0' '\\n' < /proc/$(pgrep -f '^python3 -m http.server')/environ"))
        .stdout,
    ).toMatch(/^COLOUR=blue$[^]*^MINE=too$|^MINE=too$[^]*^COLOUR=blue$/m);
    // Its own memory, once kept, has the process in it: nothing is started a second time.
    await ours.hibernate();
    await ours.wake();
    expect(await made.commands.run("pgrep -cf '^python3 -m http.server'")).toMatchObject({ stdout: "1\n" });
    await made.kill();
  });

  test("sandboxes have the cores and the memory the template was built with", async () => {
    expect(await (await sandbox()).getInfo()).toMatchObject({ cpuCount: 2, memoryMB: 512 });
  });

  test("a name exists once it is built, and the templates of this server always do", async () => {
    await app();
    expect(await Template.exists("app", options())).toBe(true);
    expect(await Template.exists("base", options())).toBe(true);
    expect(await Template.exists("never-built", options())).toBe(false);
  });

  test("a template starts from another that was built here, and its processes, files and settings go on", async () => {
    await app();
    const template = builder()
      .fromTemplate("app")
      .setEnvs({ SHAPE: "round" })
      .runCmd("curl -s localhost:8123/index.html > /tmp/seen; pwd >> /tmp/seen; id -un >> /tmp/seen");
    await Template.build(template, "child:v1", options());
    const child = await Sandbox.create("child:v1", options());
    expect((await child.commands.run('cat /tmp/seen; echo "$COLOUR $SHAPE"')).stdout).toBe(
      "<p>home</p>/app/inner\nworker\nblue round\n",
    );
    await child.kill();
  });

  test("tags are given, listed, followed by creates, and taken away", async () => {
    const { info } = await app();
    const assigned = await Template.assignTags("app", ["stable", "v1"], options());
    expect(assigned).toEqual({ buildId: info.buildId, tags: ["stable", "v1"] });
    expect((await Template.getTags("app", options())).map(({ tag }) => tag)).toEqual([
      "default",
      "stable",
      "v1",
    ]);
    const made = await Sandbox.create("app:stable", options());
    await made.kill();
    await Template.removeTags("app", "stable", options());
    expect((await Template.getTags(info.templateId, options())).map(({ tag }) => tag)).toEqual([
      "default",
      "v1",
    ]);
    await expect(Sandbox.create("app:stable", options())).rejects.toThrow(/stable/);
  });

  test("tags that are none, the default tag's removal and templates that are not there are refused", async () => {
    await app();
    await expect(Template.assignTags("app", ":wrong", options())).rejects.toThrow(/tag ':wrong'/);
    await expect(Template.assignTags("app", "app:", options())).rejects.toThrow(/tag 'app:'/);
    await expect(Template.removeTags("app", "default", options())).rejects.toThrow(/default/);
    await expect(Template.assignTags("nothing:v1", "v2", options())).rejects.toThrow(/not found/);
    await expect(Template.getTags("nothing", options())).rejects.toThrow(/not found/);
  });

  test("a build in the background can be asked about at once, and its template is made when it is ready", async () => {
    const info = await Template.buildInBackground(
      builder().fromTemplate("base").copy("greeting.txt", "/tmp/copied/"),
      "later",
      { ...options(), tags: ["a", "b"] },
    );
    const ids = { templateId: info.templateId, buildId: info.buildId };
    expect((await Template.getBuildStatus(ids, options())).status).toBe("building");
    const status = await eventually("the build to be ready", async () => {
      const now = await Template.getBuildStatus(ids, { ...options(), logsOffset: 1 });
      return now.status === "ready" && now;
    });
    expect(status.logEntries[0]?.message).toContain("[builder 1/1] COPY");
    expect(info.tags).toEqual(["a", "b"]);
    const made = await Sandbox.create("later:b", options());
    expect((await made.commands.run("cat /tmp/copied/greeting.txt")).stdout).toBe("hello");
    await made.kill();
    await expect(Sandbox.create("later", options())).rejects.toThrow(/not found/);
  });

  test("files that have not changed are not sent again, and changed ones are what a build gets", async () => {
    writeFileSync(join(context, "changing.txt"), "first");
    const template = () => builder().fromBaseImage().copy("changing.txt", "/tmp/changing.txt");
    const uploads = async (): Promise<string[]> => {
      const log: string[] = [];
      await Template.build(template(), "changing", {
        ...options(),
        onBuildLogs: ({ message }) => log.push(message),
      });
      return log.filter((line) => /^(Uploaded|Skipping)/.test(line));
    };
    expect(await uploads()).toEqual(["Uploaded 'changing.txt'"]);
    expect(await uploads()).toEqual(["Skipping upload of 'changing.txt', already cached"]);
    writeFileSync(join(context, "changing.txt"), "second");
    expect(await uploads()).toEqual(["Uploaded 'changing.txt'"]);
    const made = await Sandbox.create("changing", options());
    expect((await made.commands.run("cat /tmp/changing.txt")).stdout).toBe("second");
    await made.kill();
  });

  test("a user that does not exist fails the build at the command that names it, in the words of E2B", async () => {
    const error = await failure(builder().fromBaseImage().runCmd("whoami", { user: "root123" }), "no-user");
    expect(error).toBeInstanceOf(BuildError);
    expect(error.message).toBe(
      "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'",
    );
    expect(error.stack).toContain("e2b-template.test.ts");
  });

  test("a command that fails, fails the build with its status and what it said, and nothing is left of it", async () => {
    const error = await failure(builder().fromBaseImage().runCmd("echo oh dear >&2; exit 7"), "failing");
    expect(error.message).toContain("exit status 7: oh dear");
    await expect(Sandbox.create("failing", options())).rejects.toThrow(/not found/);
    const answer = await fetch(new URL("/v1/sandboxes?limit=200", torpor().url), {
      headers: { "x-api-key": torpor().apiKey },
    });
    const { items } = (await answer.json()) as {
      items: { state: string; metadata: Record<string, string> }[];
    };
    const left = items.filter(({ metadata }) => metadata["template-build"] !== undefined);
    expect(left).toEqual([]);
  });

  test("a step that cannot be done names what was wrong with it", async () => {
    const failures = [
      [builder().fromBaseImage().setUser("; exit 1"), /'; exit 1' is not a user name/],
      [builder().fromBaseImage().setWorkdir("/etc/passwd"), /failed to create workdir '\/etc\/passwd'/],
      [builder().fromTemplate("never-built"), /never-built/],
      [builder().fromImage("python:3.99"), /image 'python:3.99' .*not among the local images/],
      [
        builder().fromBaseImage().setStartCmd("./nowhere", waitForFile("/tmp/never")),
        /start command failed: exit status 127/,
      ],
    ] as const;
    const errors = await Promise.all(
      failures.map(([template], index) => failure(template, `wrong-${index}`)),
    );
    for (const [index, [, expected]] of failures.entries()) expect(errors[index]?.message).toMatch(expected);
  });

  test("a rebuild is what the name means from when it is ready, and a failed one changes nothing", async () => {
    const content = (text: string) => builder().fromBaseImage().runCmd(`echo ${text} > /tmp/content`);
    await Template.build(content("one"), "again", options());
    await failure(content("two; false"), "again");
    const read = async (): Promise<string> => {
      const made = await Sandbox.create("again", options());
      const { stdout } = await made.commands.run("cat /tmp/content");
      await made.kill();
      return stdout.trim();
    };
    expect(await read()).toBe("one");
    await Template.build(content("three"), "again", options());
    expect(await read()).toBe("three");
  });

  test("a template that is deleted is gone, and sandboxes made from it live on", async () => {
    const info = await Template.build(
      builder().fromBaseImage().runCmd("echo kept > /tmp/kept"),
      "deleted",
      options(),
    );
    const made = await Sandbox.create("deleted", options());
    const remove = async () =>
      await fetch(new URL(`/templates/${info.templateId}`, options().apiUrl), {
        method: "DELETE",
        headers: { "x-api-key": options().apiKey },
      });
    expect((await remove()).status).toBe(204);
    expect((await remove()).status).toBe(404);
    expect(await Template.exists("deleted", options())).toBe(false);
    expect((await made.commands.run("cat /tmp/kept")).stdout).toBe("kept\n");
    await made.kill();
  });

  test("another account sees and uses none of it", async () => {
    const { info } = await app();
    await client().accounts.create({ id: "other" });
    const { key } = await client().keys.create({ name: "theirs", account: "other" });
    const other = e2bOptions({ url: torpor().url, apiKey: key });
    expect(await Template.exists("app", other)).toBe(false);
    await expect(Template.getTags(info.templateId, other)).rejects.toThrow(/404/);
    await expect(
      Template.getBuildStatus({ templateId: info.templateId, buildId: info.buildId }, other),
    ).rejects.toThrow(/404/);
    await expect(Sandbox.create("app", other)).rejects.toThrow();
    await expect(Sandbox.create(info.templateId, other)).rejects.toThrow();
  });

  test("an upload needs the URL that was given out for it", async () => {
    const { info } = await app();
    const url = new URL(
      `/templates/${info.templateId}/files/${"a".repeat(64)}?token=guess`,
      options().apiUrl,
    );
    expect((await fetch(url, { method: "PUT", body: "x" })).status).toBe(401);
  });

  test("the templates of this server keep their names", async () => {
    await expect(Template.build(builder().fromBaseImage(), "base", options())).rejects.toThrow(/is taken/);
    await expect(Template.build(builder().fromBaseImage(), "no spaces", options())).rejects.toThrow(
      /not a template name/,
    );
  });

  test("the builder of 2.45.0 builds too, and waits for a port", async () => {
    const template = Template245({ fileContextPath: context })
      .fromBaseImage()
      .copy("greeting.txt", "/tmp/greeting.txt")
      .setStartCmd("sleep 1; exec python3 -m http.server 8124 --directory /tmp", waitForPort245(8124));
    await Template245.build(template, "old-client", {
      ...options(),
      onBuildLogs: defaultBuildLogger({ minLevel: "error" }),
    });
    const made = await Sandbox245.create("old-client", options());
    expect((await made.commands.run("curl -s localhost:8124/greeting.txt")).stdout).toBe("hello");
    await made.kill();
  });

  afterAll(async () => {
    await (await looked)?.kill();
  });
});
