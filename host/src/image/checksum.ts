import { Worker } from "node:worker_threads";

export interface Checksum {
  size: number;
  /** Hexadecimal. */
  sha256: string;
}

/**
 * Reads with a small buffer that stays in the processor's cache: page faults are dear on virtual machines, and fresh memory
 * for every piece costs half as much again as the hash. One file at a time: two beside each other are no faster on cores
 * that share their units. A string, so that it runs alike from src, from dist and in tests.
 */
const PROGRAM = `
const { parentPort } = require("node:worker_threads");
const { createHash } = require("node:crypto");
const { closeSync, openSync, readSync } = require("node:fs");
const buffer = Buffer.allocUnsafeSlow(256 * 1024);
parentPort.on("message", ({ ticket, path }) => {
  try {
    const file = openSync(path, "r");
    try {
      const hash = createHash("sha256");
      let size = 0;
      for (let length; (length = readSync(file, buffer)) > 0; size += length) hash.update(buffer.subarray(0, length));
      parentPort.postMessage({ ticket, size, sha256: hash.digest("hex") });
    } finally {
      closeSync(file);
    }
  } catch (error) {
    parentPort.postMessage({ ticket, error });
  }
});
`;

type Answer = { ticket: number } & (Checksum | { error: Error });

interface Waiting {
  resolve: (checksum: Checksum) => void;
  reject: (error: Error) => void;
}

/** Reads files on a thread of its own, which holds no process up. Started at the first file, and again after it died. */
export class Checksums {
  readonly #waiting = new Map<number, Waiting>();
  #tickets = 0;
  #worker: Worker | undefined;

  /** Size and SHA-256 of a file. @throws what the file system throws */
  of(path: string): Promise<Checksum> {
    return new Promise((resolve, reject) => {
      const ticket = (this.#tickets += 1);
      this.#waiting.set(ticket, { resolve, reject });
      this.#worker ??= this.#start();
      this.#worker.ref();
      this.#worker.postMessage({ ticket, path }, []);
    });
  }

  #start(): Worker {
    const worker = new Worker(PROGRAM, { eval: true, execArgv: [] });
    worker.on("message", (answer: Answer) => {
      const waiting = this.#waiting.get(answer.ticket);
      this.#waiting.delete(answer.ticket);
      if (this.#waiting.size === 0) worker.unref();
      if ("error" in answer) waiting?.reject(answer.error);
      else waiting?.resolve({ size: answer.size, sha256: answer.sha256 });
    });
    worker.on("error", (error) => this.#failAll(error));
    worker.on("exit", () => {
      this.#worker = undefined;
      this.#failAll(new Error("the thread that reads images has ended"));
    });
    return worker;
  }

  #failAll(error: Error): void {
    for (const { reject } of this.#waiting.values()) reject(error);
    this.#waiting.clear();
  }
}
