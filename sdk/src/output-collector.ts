import { joinBytes } from "./download-stream.ts";

/** Keeps the first bytes of one output stream. */
export class OutputCollector {
  readonly #limitBytes: number;
  readonly #chunks: Uint8Array[] = [];
  #keptBytes = 0;
  #isTruncated = false;

  constructor(limitBytes: number) {
    this.#limitBytes = limitBytes;
  }

  /** Whether bytes were left out. */
  get isTruncated(): boolean {
    return this.#isTruncated;
  }

  /** Counts `droppedBytes` that never arrived as left out. */
  add(chunk: Uint8Array, droppedBytes: number): void {
    const room = this.#limitBytes - this.#keptBytes;
    if (chunk.byteLength > room || droppedBytes > 0) this.#isTruncated = true;
    const kept = chunk.byteLength > room ? chunk.subarray(0, room) : chunk;
    if (kept.byteLength === 0) return;
    this.#chunks.push(kept);
    this.#keptBytes += kept.byteLength;
  }

  bytes(): Uint8Array {
    return joinBytes(this.#chunks, this.#keptBytes);
  }

  /** A character cut in two by the limit is left out rather than shown as an invalid one. */
  text(): string {
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(this.bytes(), { stream: this.#isTruncated });
  }
}
