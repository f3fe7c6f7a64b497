import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { run, Scope } from "@torpor/base";
import { findRunsc, LAUNCHER_PATH, netSysctlsMustHide, writeBundle } from "@torpor/host";

/** A /30 at the end of the range reserved for benchmarking (RFC 2544). */
const OUTER = "198.19.255.253";
const INNER = "198.19.255.254";
const LINK = "torpor-bench0";
const NETNS = "torpor-bench";

/** A template as the host keeps it. */
export interface BareTemplate {
  /** Its root filesystem as a plain directory, as anybody starts `runsc run`. */
  rootfsDir: string;
  /** Its golden snapshot, and the packed root that one stands on. */
  goldenDir: string;
}

/**
 * runsc by hand, without Torpor: what its figures are compared to. Same flags, same root filesystem, same golden image.
 * A fresh network namespace for each start is made beforehand and not counted.
 */
export class BareRuntime implements AsyncDisposable {
  readonly #scope = new Scope();
  readonly #runsc: string;
  readonly #template: BareTemplate;
  readonly #directory: string;
  #hide = false;
  #starts = 0;

  private constructor(runsc: string, template: BareTemplate, directory: string) {
    this.#runsc = runsc;
    this.#template = template;
    this.#directory = directory;
  }

  static async open(template: BareTemplate): Promise<BareRuntime> {
    const directory = await mkdtemp(join(tmpdir(), "torpor-bare-"));
    const bare = new BareRuntime(findRunsc(undefined), template, directory);
    bare.#scope.defer(() => rm(directory, { recursive: true, force: true }));
    bare.#scope.defer(removeNetwork);
    await makeNetwork();
    bare.#hide = await netSysctlsMustHide(NETNS);
    return bare;
  }

  /** Milliseconds from starting `runsc run` of `echo` until it has ended. */
  async coldEcho(platform = "systrap"): Promise<number> {
    const directory = await this.#bundle(["/bin/echo", "hi"]);
    await this.#onPlainDirectory(directory);
    await makeNetwork();
    const startedAt = performance.now();
    const { stdout } = await run(this.#argv(directory, platform, ["run", "-bundle", directory, "bare"]));
    const tookMs = performance.now() - startedAt;
    if (stdout.trim() !== "hi") throw new Error(`bare echo printed ${JSON.stringify(stdout)}`);
    await rm(directory, { recursive: true, force: true });
    return tookMs;
  }

  /** Milliseconds from starting `runsc restore` of an image until the guest agent's first answer. */
  async restoreAndPing(): Promise<number> {
    const imageDir = join(this.#template.goldenDir, "image");
    const directory = await this.#bundle(undefined);
    await makeNetwork();
    const startedAt = performance.now();
    await run(
      this.#argv(directory, "systrap", [
        "restore",
        "-detach",
        "-bundle",
        directory,
        "-image-path",
        imageDir,
        "bare",
      ]),
      { outputFd: 2 },
    );
    while (!(await ping())) {
      if (performance.now() - startedAt > 30_000) throw new Error("the bare restore does not answer");
      await delay(1);
    }
    const tookMs = performance.now() - startedAt;
    await run(this.#argv(directory, "systrap", ["delete", "-force", "bare"]));
    await rm(directory, { recursive: true, force: true });
    return tookMs;
  }

  #argv(directory: string, platform: string, command: string[]): [string, ...string[]] {
    return [
      "unshare",
      "--mount",
      "--propagation",
      "private",
      "--",
      "/bin/sh",
      LAUNCHER_PATH,
      this.#hide ? "hide" : "show",
      "-",
      "-",
      "--",
      this.#runsc,
      `--root=${join(directory, "state")}`,
      `--platform=${platform}`,
      "--network=sandbox",
      `--overlay2=root:dir=${join(directory, "overlay")}`,
      "--ignore-cgroups",
      "--net-disconnect-ok=true",
      ...command,
    ];
  }

  /** The host's own bundle; with another command when one is given. */
  async #bundle(args: string[] | undefined): Promise<string> {
    const directory = join(this.#directory, String((this.#starts += 1)));
    for (const name of ["overlay", "root"]) await mkdir(join(directory, name), { recursive: true });
    await writeBundle({
      directory,
      rootImagePath: join(this.#template.goldenDir, "root.img"),
      emptyDir: join(directory, "root"),
      overlayDir: join(directory, "overlay"),
      netns: NETNS,
      ...(args === undefined ? {} : { args }),
    });
    return directory;
  }

  /** Makes the bundle what anybody has who unpacks an image and starts it. */
  async #onPlainDirectory(directory: string): Promise<void> {
    const path = join(directory, "config.json");
    const config = JSON.parse(await readFile(path, "utf8")) as Record<string, unknown>;
    delete config["annotations"];
    config["root"] = { path: this.#template.rootfsDir, readonly: false };
    await writeFile(path, JSON.stringify(config));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#scope.close();
  }
}

/** runsc takes the addresses off what it uses, so each start needs the network anew. */
async function makeNetwork(): Promise<void> {
  await removeNetwork();
  await run(["ip", "-batch", "-"], {
    input: [
      `netns add ${NETNS}`,
      `link add ${LINK} type veth peer name eth0 netns ${NETNS}`,
      `addr add ${OUTER}/30 dev ${LINK}`,
      `link set ${LINK} up`,
    ].join("\n"),
  });
  await run(["ip", "-n", NETNS, "-batch", "-"], {
    input: [
      `addr add ${INNER}/30 dev eth0`,
      "link set lo up",
      "link set eth0 up",
      `route add default via ${OUTER}`,
    ].join("\n"),
  });
}

async function removeNetwork(): Promise<void> {
  await run(["ip", "-force", "-batch", "-"], { input: `link del ${LINK}\nnetns del ${NETNS}` }).catch(
    () => {},
  );
}

function ping(): Promise<boolean> {
  return new Promise((resolve) => {
    const outgoing = request(
      { host: INNER, port: 49_983, path: "/health", agent: false, timeout: 100 },
      (answer) => {
        answer.resume();
        resolve(answer.statusCode === 204);
      },
    );
    outgoing.on("timeout", () => outgoing.destroy());
    outgoing.on("error", () => resolve(false));
    outgoing.end();
  });
}
