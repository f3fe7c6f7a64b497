import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { run, Scope } from "@torpor/base";
import {
  findRunsc,
  isAlive,
  LAUNCHER_PATH,
  netSysctlsMustHide,
  processIdentity,
  writeBundle,
} from "@torpor/host";

/** Flags of `runsc checkpoint` that the host uses too: the default compression would take several times as long. */
const CHECKPOINT = ["checkpoint", "-compression=none", "-image-path"];

/** A network of a start's own: a /30 each, from the end of the range reserved for benchmarking (RFC 2544). */
class BareNetwork {
  readonly netns: string;
  readonly inner: string;
  readonly #outer: string;
  readonly #link: string;

  /** `index`: below 60. */
  constructor(index: number) {
    const block = 252 - 4 * index;
    this.netns = `torpor-bench${index}`;
    this.#link = `torpor-bench${index}`;
    this.#outer = `198.19.255.${block + 1}`;
    this.inner = `198.19.255.${block + 2}`;
  }

  /** runsc takes the addresses off what it uses, so each start needs the network anew. */
  async make(): Promise<void> {
    await this.remove();
    await run(["ip", "-batch", "-"], {
      input: [
        `netns add ${this.netns}`,
        `link add ${this.#link} type veth peer name eth0 netns ${this.netns}`,
        `addr add ${this.#outer}/30 dev ${this.#link}`,
        `link set ${this.#link} up`,
      ].join("\n"),
    });
    await run(["ip", "-n", this.netns, "-batch", "-"], {
      input: [
        `addr add ${this.inner}/30 dev eth0`,
        "link set lo up",
        "link set eth0 up",
        `route add default via ${this.#outer}`,
      ].join("\n"),
    });
  }

  async remove(): Promise<void> {
    await run(["ip", "-force", "-batch", "-"], {
      input: `link del ${this.#link}\nnetns del ${this.netns}`,
    }).catch(() => {});
  }

  /** Whether the guest agent answers. */
  ping(): Promise<boolean> {
    return new Promise((resolve) => {
      const outgoing = request(
        { host: this.inner, port: 49_983, path: "/health", agent: false, timeout: 100 },
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
}

interface BarePlace {
  network: BareNetwork;
  directory: string;
}

/** A sandbox that was restored by hand. */
export interface BareMachine {
  /** Milliseconds from starting `runsc restore` until the guest agent's first answer. */
  restoreMs: number;
  /**
   * Milliseconds until `runsc checkpoint` of it is done and its sandbox has ended, which the command does not wait for, and
   * those until the image would survive a power cut: the runtime leaves it in the page cache.
   */
  checkpoint(): Promise<{ checkpointMs: number; durableMs: number }>;
  remove(): Promise<void>;
}

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
  readonly #networks: BareNetwork[] = [];
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
    bare.#scope.defer(() => bare.#removeNetworks());
    const network = bare.#network(0);
    await network.make();
    bare.#hide = await netSysctlsMustHide(network.netns);
    return bare;
  }

  /** Milliseconds from starting `runsc run` of `echo` until it has ended. */
  async coldEcho(platform = "systrap"): Promise<number> {
    const network = this.#network(0);
    const directory = await this.#bundle(network, ["/bin/echo", "hi"]);
    await this.#onPlainDirectory(directory);
    await network.make();
    const startedAt = performance.now();
    const { stdout } = await run(this.#argv(directory, platform, ["run", "-bundle", directory, "bare"]));
    const tookMs = performance.now() - startedAt;
    if (stdout.trim() !== "hi") throw new Error(`bare echo printed ${JSON.stringify(stdout)}`);
    await rm(directory, { recursive: true, force: true });
    return tookMs;
  }

  /** Milliseconds from starting `runsc restore` of the golden image until the guest agent's first answer. */
  async restoreAndPing(): Promise<number> {
    const machine = await this.restore(join(this.#template.goldenDir, "image"));
    await machine.remove();
    return machine.restoreMs;
  }

  /** Restores an image of the template. */
  async restore(imageDir: string): Promise<BareMachine> {
    return this.#restore(await this.#place(0), imageDir);
  }

  /** Milliseconds until the last of `count` restores of one image, started beside each other, has answered. */
  async restoreTogether(imageDir: string, count: number): Promise<number> {
    const places: BarePlace[] = [];
    for (let index = 0; index < count; index++) places.push(await this.#place(index));
    const startedAt = performance.now();
    const settled = await Promise.allSettled(places.map((place) => this.#restore(place, imageDir)));
    const tookMs = performance.now() - startedAt;
    for (const outcome of settled) if (outcome.status === "fulfilled") await outcome.value.remove();
    for (const outcome of settled) if (outcome.status === "rejected") throw outcome.reason;
    return tookMs;
  }

  /** What a restore needs, made beforehand and not counted. */
  async #place(index: number): Promise<BarePlace> {
    const network = this.#network(index);
    const directory = await this.#bundle(network);
    await network.make();
    return { network, directory };
  }

  async #restore({ network, directory }: BarePlace, imageDir: string): Promise<BareMachine> {
    const pidFile = join(directory, "pid");
    const command = [
      "restore",
      "-detach",
      "-bundle",
      directory,
      "-pid-file",
      pidFile,
      "-image-path",
      imageDir,
      "bare",
    ];
    const startedAt = performance.now();
    await run(this.#argv(directory, "systrap", command), { outputFd: 2, timeoutMs: 60_000 });
    while (!(await network.ping())) {
      if (performance.now() - startedAt > 60_000) throw new Error("the bare restore does not answer");
      await delay(1);
    }
    const restoreMs = performance.now() - startedAt;
    const sandbox = processIdentity(Number(await readFile(pidFile, "utf8")));
    if (sandbox === undefined) throw new Error("the bare sandbox has ended");
    return {
      restoreMs,
      checkpoint: async () => {
        const image = join(directory, "image");
        await mkdir(image);
        const beganAt = performance.now();
        await run(this.#argv(directory, "systrap", [...CHECKPOINT, image, "bare"]), { timeoutMs: 60_000 });
        while (isAlive(sandbox)) await delay(1);
        const checkpointMs = performance.now() - beganAt;
        await run(["sync", ...(await readdir(image)).map((name) => join(image, name))]);
        return { checkpointMs, durableMs: performance.now() - beganAt };
      },
      remove: async () => {
        await run(this.#argv(directory, "systrap", ["delete", "-force", "bare"]));
        await rm(directory, { recursive: true, force: true });
      },
    };
  }

  /** A network has the number of the start that uses it; made by whoever starts something in it. */
  #network(index: number): BareNetwork {
    return (this.#networks[index] ??= new BareNetwork(index));
  }

  async #removeNetworks(): Promise<void> {
    for (const network of this.#networks) await network?.remove();
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
  async #bundle(network: BareNetwork, args?: string[]): Promise<string> {
    const directory = join(this.#directory, String((this.#starts += 1)));
    for (const name of ["overlay", "root"]) await mkdir(join(directory, name), { recursive: true });
    await writeBundle({
      directory,
      rootImagePath: join(this.#template.goldenDir, "root.img"),
      emptyDir: join(directory, "root"),
      overlayDir: join(directory, "overlay"),
      netns: network.netns,
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
