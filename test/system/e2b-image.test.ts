import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { run } from "@torpor/base";
import { Torpor } from "@torpor/sdk";
import { BuildError, Sandbox, Template } from "e2b";
import { Sandbox as Sandbox245, Template as Template245 } from "e2b-2.45";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { keepLayers, type LayerEntry, makeContainerImage, STATIC_BASH } from "../src/container-image.ts";
import { ContainerRegistry } from "../src/container-registry.ts";
import { e2bOptions, eventually, useInstance } from "../src/index.ts";
import { filesThatHold } from "../src/needle-search.ts";

const LOGIN = { username: "robot", password: "pass-Kq7xw2Zr-word" };
const registry = await ContainerRegistry.start(LOGIN);
/** Of this file alone, so that what is made here from images goes with it. */
const templatesDir = mkdtempSync(join(tmpdir(), "torpor-images-"));
afterAll(async () => {
  await registry.stop();
  rmSync(templatesDir, { recursive: true, force: true });
});

const bash: LayerEntry = { path: "bin/bash", content: STATIC_BASH };
const passwd: LayerEntry = {
  path: "etc/passwd",
  mode: 0o644,
  content: "root:x:0:0::/root:/bin/bash\nworker:x:1005:1005::/home/worker:/bin/bash\n",
};

describe("templates made from container images", () => {
  const torpor = useInstance({
    server: true,
    templatesDir,
    env: {
      TORPOR_IMAGE_REGISTRIES: `127.0.0.1:1,${registry.address}`,
      TORPOR_IMAGE_CA_FILE: registry.caFile,
      TORPOR_IMAGE_MAX_MB: "96",
    },
  });
  const options = () => e2bOptions(torpor());
  const client = () => new Torpor({ url: torpor().url, apiKey: torpor().apiKey });
  const images = () => join(torpor().stateDir, "images");

  /** Builds, and gives what the build said. */
  async function build(
    template: Parameters<typeof Template.build>[0],
    name: string,
    key?: string,
  ): Promise<string[]> {
    const said: string[] = [];
    const given = key === undefined ? options() : e2bOptions({ url: torpor().url, apiKey: key });
    await Template.build(template, name, { ...given, onBuildLogs: ({ message }) => said.push(message) });
    return said;
  }
  /** Why a build of an image fails. */
  const failure = async (image: string): Promise<Error> =>
    await Template.build(Template().fromImage(image), "fails", options()).then(
      () => expect.fail("the build did not fail"),
      (error: Error) => error,
    );
  const finished = (): string[] => readdirSync(templatesDir).filter((name) => /^[0-9a-f]{64}$/.test(name));

  beforeAll(async () => {
    mkdirSync(images());
    await makeContainerImage({
      layout: join(images(), "team_app_1.0"),
      tag: "1.0",
      layers: [[bash, passwd]],
      env: ["COLOUR=blue", "PATH=/opt/tools:/bin"],
      user: "worker",
      workdir: "/srv/app",
    });
    const empty = join(images(), "..", "empty");
    await makeContainerImage({
      layout: empty,
      tag: "t",
      layers: [[{ path: "hello", content: "hi" }]],
      user: "4242",
    });
    await run([
      "skopeo",
      "copy",
      `oci:${empty}:t`,
      `docker-archive:${join(images(), "saved.tar")}:tools/empty:2`,
    ]);
  });

  test("an image from an OCI layout gives steps and sandboxes its environment, user and working directory", async () => {
    const seen = 'echo "$COLOUR $USER $PWD $PATH"';
    await build(Template().fromImage("team/app:1.0").runCmd(`${seen} > /tmp/seen`), "app");
    const sandbox = await Sandbox.create("app", options());
    const expected = "blue worker /srv/app /opt/tools:/bin\n";
    expect(await sandbox.files.read("/tmp/seen")).toBe(expected);
    expect((await sandbox.commands.run(seen)).stdout).toBe(expected);
    expect((await sandbox.commands.run("echo $UID", { user: "root" })).stdout).toBe("0\n");
    await sandbox.kill();
  });

  test("an image from a docker-archive, without shell and accounts, works with the older client too", async () => {
    const template = Template245()
      .fromImage("tools/empty:2")
      .runCmd('echo "$UID $PWD" > /tmp/step')
      .setUser("user")
      .setWorkdir("/home/user")
      .runCmd('echo "$UID $PWD" >> /tmp/step', { user: "root" });
    await Template245.build(template, "from-archive", options());
    const sandbox = await Sandbox245.create("from-archive", options());
    expect(await sandbox.files.read("/tmp/step")).toBe("4242 /home/uid4242\n0 /home/user\n");
    expect(await sandbox.files.read("/hello")).toBe("hi");
    await sandbox.files.write("written.txt", "by the agent");
    expect((await sandbox.commands.run('echo "$USER $(< written.txt)"')).stdout).toBe("user by the agent\n");
    await sandbox.kill();
  });

  test("the same image again is not unpacked again, whatever it comes in", async () => {
    await build(Template().fromImage("team/app:1.0"), "app");
    const before = finished();
    const archive = join(images(), "other.tar");
    await run([
      "skopeo",
      "copy",
      `oci:${join(images(), "team_app_1.0")}:1.0`,
      `oci-archive:${archive}:copies/app:9`,
    ]);
    const said = await build(Template().fromImage("copies/app:9"), "app");
    expect(said.join("\n")).toContain("Already built");
    expect(said.join("\n")).not.toContain("Unpacking");
    expect(finished()).toEqual(before);
  });

  test("an operator makes a named template of an image, from which anybody makes sandboxes", async () => {
    const stages: string[] = [];
    const { template } = await client().templates.build("imported", {
      image: `oci:${join(images(), "team_app_1.0")}:1.0`,
      onProgress: ({ stage }) => stages.push(stage),
    });
    expect(template).toMatchObject({ name: "imported", golden: ["gvisor"] });
    expect((await client().templates.list()).map(({ name }) => name)).toEqual(["imported"]);
    const sandbox = await client().sandboxes.create({ template: "imported", ttlSeconds: 60 });
    expect((await sandbox.exec('echo "$COLOUR $USER $PWD"')).stdout).toBe("blue worker /srv/app\n");
    await sandbox.destroy();
    expect((await client().templates.build("imported", { image: "team/app:1.0" })).cached).toBe(true);
  });

  test("nobody makes a sandbox of an image's template but by a build or a name", async () => {
    const [hash = ""] = finished();
    const create = async (template: string): Promise<unknown> =>
      await torpor()
        .api.json("/v1/sandboxes", { method: "POST", body: { template, ttl_seconds: 60 } })
        .catch((error: unknown) => String(error));
    expect(await create(`image:${hash}`)).toMatch(/template/);
    await build(Template().fromImage("tools/empty:2"), "app-2");
    const named = basename(readlinkSync(join(templatesDir, "by-name", "imported")));
    for (const each of finished().filter((one) => one !== named)) {
      expect(await create(each)).toMatch(/no template|template_not_found/);
    }
  });

  test("an image that is not there is asked of its registry, and one out of reach fails the build at its base, saying what to do", async () => {
    const error = await failure("127.0.0.1:1/team/gone:3");
    expect(error).toBeInstanceOf(BuildError);
    expect(error.message).toMatch(
      /image '127\.0\.0\.1:1\/team\/gone:3'.*not among the local images.*cannot be reached.*connection refused.*skopeo copy/s,
    );
    const elsewhere = await failure("127.0.0.1:2/team/gone:3");
    expect(elsewhere.message).toMatch(
      /registry 127\.0\.0\.1:2 is none that this host asks.*TORPOR_IMAGE_REGISTRIES/,
    );
    expect((await failure("python:3.99")).message).toMatch(/leaves out 'default'/);
    expect((await failure("Not A Name")).message).toMatch(/is no image's name/);
  });

  test("an image from a registry takes a name and a password, which are nowhere afterwards, and is its tenant's alone", async () => {
    await makeContainerImage({
      layout: registry.layout,
      tag: "7",
      layers: [[bash, { path: "mine", content: "mine" }]],
    });
    const image = `${registry.address}/team/private:7`;
    expect((await failure(image)).message).toMatch(/does not give it out/);
    const keyOf = async (tenant: string): Promise<string> =>
      (await client().keys.create({ name: tenant, tenant })).key;
    const [acme, other] = [await keyOf("acme"), await keyOf("other")];
    const before = finished().length;
    await build(Template().fromImage(image, LOGIN).runCmd("[[ $(< /mine) = mine ]]"), "mine", acme);
    const fetched = registry.blobs;
    await build(Template().fromImage(image, LOGIN), "mine", acme);
    expect(finished()).toHaveLength(before + 1);
    expect(registry.blobs).toBe(fetched + 1); // the configuration alone
    await build(Template().fromImage(image, LOGIN), "theirs", other);
    expect(finished()).toHaveLength(before + 2);
    const wrong = Template().fromImage(image, { ...LOGIN, password: "guessed-Kq7" });
    await expect(build(wrong, "mine", other)).rejects.toThrow(/does not give it out/);
    for (const secret of [
      LOGIN.password,
      Buffer.from(`${LOGIN.username}:${LOGIN.password}`).toString("base64"),
    ]) {
      for (const folder of ["logs", "server", "host"])
        expect(filesThatHold(join(torpor().stateDir, folder), secret).found).toEqual([]);
    }
  });

  test("broken images and those of another machine are refused with what is wrong", async () => {
    writeFileSync(join(images(), "broken_1.tar"), "no tar at all");
    const cut = join(images(), "cut.tar");
    await run([
      "skopeo",
      "copy",
      `oci:${join(images(), "team_app_1.0")}:1.0`,
      `docker-archive:${cut}:cut/off:1`,
    ]);
    // manifest.json comes last in it: a name that leads to a file of which the rest is missing
    truncateSync(cut, 300_000);
    const changed = join(images(), "changed_1");
    await makeContainerImage({ layout: changed, tag: "1", layers: [[bash]] });
    const blobs = join(changed, "blobs", "sha256");
    const layer = readdirSync(blobs).find((name) => readFileSync(join(blobs, name)).length > 100_000) ?? "";
    const bytes = readFileSync(join(blobs, layer));
    bytes[bytes.length >> 1] = (bytes[bytes.length >> 1] ?? 0) ^ 0xff;
    writeFileSync(join(blobs, layer), bytes);
    await makeContainerImage({
      layout: join(images(), "arm_1"),
      tag: "1",
      layers: [[bash]],
      architecture: "s390x",
    });
    await makeContainerImage({
      layout: join(images(), "nobody_1"),
      tag: "1",
      layers: [[bash]],
      user: "stranger",
    });
    // Of the configuration of another image it lists one layer less than that stands for.
    const less = join(images(), "less_1");
    await makeContainerImage({
      layout: less,
      tag: "1",
      layers: [[bash, passwd], [{ path: "extra", content: "x" }]],
    });
    keepLayers(less, 1);
    // A whiteout of "..": umoci removes the whole root for it, and says nothing.
    await makeContainerImage({
      layout: join(images(), "rootless_1"),
      tag: "1",
      layers: [[bash], [{ path: "nodir/.wh...", content: "" }]],
    });
    for (const [image, expected] of [
      ["rootless:1", /image 'rootless:1' cannot be unpacked: its layers leave no root folder/],
      ["less:1", /image 'less:1' cannot be built from: its manifest lists 1 layers, and .* stands for 2/],
      ["broken:1", /image 'broken:1' cannot be built from: it cannot be read/],
      [`cut/off:1`, /not among the local images/],
      ["changed:1", /image 'changed:1' cannot be (built from|unpacked)/],
      ["arm:1", /image 'arm:1' is for linux\/s390x, and this host runs linux\//],
      ["nobody:1", /as 'stranger', and it has no user of that name/],
    ] as const) {
      expect((await failure(image)).message).toMatch(expected);
    }
  });

  test("a hostile image reaches nothing outside of its root, and one that is too large is refused", async () => {
    const outside = mkdtempSync(join(tmpdir(), "torpor-outside-"));
    writeFileSync(join(outside, "kept"), "as it was");
    const up = "../".repeat(12);
    await makeContainerImage({
      layout: join(images(), "hostile_1"),
      tag: "1",
      layers: [
        [
          bash,
          { path: "out", type: "link", to: outside },
          { path: "etc", type: "link", to: outside },
          { path: "home", type: "link", to: `${up}${outside}` },
          { path: "disk", type: "device" },
          { path: "setuid", content: STATIC_BASH, mode: 0o4755 },
        ],
        [
          { path: "out/through-a-link", content: "x" },
          { path: `${up}${outside.slice(1)}/by-dots`, content: "x" },
          { path: `${outside}/absolute`, content: "x" },
          { path: "out/.wh.kept", content: "" },
          { path: "linked", type: "hard-link", to: `${up}${outside.slice(1)}/kept` },
        ],
      ],
    });
    // A hard link to what is not in the image fails it; without it, the rest stays inside.
    const refused = await failure("hostile:1");
    expect(refused.message).toMatch(/image 'hostile:1' cannot be unpacked/);
    expect(readdirSync(outside)).toEqual(["kept"]);
    await makeContainerImage({
      layout: join(images(), "hostile_2"),
      tag: "2",
      layers: [
        [
          bash,
          { path: "out", type: "link", to: outside },
          { path: "etc", type: "link", to: outside },
          { path: "disk", type: "device" },
        ],
        [
          { path: `${up}${outside.slice(1)}/by-dots`, content: "x" },
          { path: "out/through-a-link", content: "x" },
        ],
      ],
    });
    await build(Template().fromImage("hostile:2").runCmd("[[ ! -e /disk ]]"), "hostile");
    expect(readdirSync(outside)).toEqual(["kept"]);
    expect(readFileSync(join(outside, "kept"), "utf8")).toBe("as it was");
    rmSync(outside, { recursive: true });

    await makeContainerImage({
      layout: join(images(), "huge_1"),
      tag: "1",
      layers: [[bash, { path: "zeros", content: Buffer.alloc(120 * 1024 ** 2) }]],
    });
    expect((await failure("huge:1")).message).toMatch(/image 'huge:1' is larger than an image may be here/);
  });

  test("a host that is killed while it makes one leaves nothing that looks finished", async () => {
    await makeContainerImage({
      layout: join(images(), "slow_1"),
      tag: "1",
      layers: [[bash, { path: "data", content: Buffer.alloc(30 * 1024 ** 2, "x") }]],
    });
    const before = finished();
    const reached = new Promise<void>((resolve) => {
      torpor()
        .host.buildTemplate("slow", (stage) => stage === "unpack" && resolve(), "slow:1")
        .catch(() => {});
    });
    await reached;
    await torpor().killHost();
    const left = () => readdirSync(templatesDir).filter((name) => name.startsWith(".building"));
    expect(left()).not.toEqual([]);
    expect(finished()).toEqual(before);
    await torpor().startHost();
    await eventually("what the dead host left is gone", () => left().length === 0);
    expect(existsSync(join(templatesDir, "by-name", "slow"))).toBe(false);
    expect((await torpor().host.buildTemplate("slow", () => {}, "slow:1")).name).toBe("slow");
  });
});
