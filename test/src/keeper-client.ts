import { type ChildProcess, spawn } from "node:child_process";
import { fileURLToPath } from "node:url";
import type { InstanceEnd } from "./end-instance.ts";
import { repositoryRoot } from "./repository.ts";

/** The keeper of this process: started with the first instance, it outlives us and ends what we leave behind. */
class Keeper {
  #child: ChildProcess | undefined;

  watch(instance: InstanceEnd): void {
    this.#send({ watch: instance });
  }

  forget(instance: InstanceEnd): void {
    this.#send({ forget: instance.stateDir });
  }

  #send(message: unknown): void {
    this.#child ??= this.#start();
    this.#child.stdin?.write(`${JSON.stringify(message)}\n`);
  }

  #start(): ChildProcess {
    const file = fileURLToPath(new URL("keeper.ts", import.meta.url));
    const child = spawn(process.execPath, ["--conditions=source", "--import", "tsx", file], {
      cwd: repositoryRoot,
      detached: true,
      stdio: ["pipe", "ignore", "ignore"],
    });
    child.unref();
    // The pipe must not keep this process alive: its end, however it comes, is the message.
    (child.stdin as unknown as { unref?: () => void }).unref?.();
    child.stdin?.on("error", () => {});
    return child;
  }
}

export const keeper = new Keeper();
