/** One output stream of a command, kept up to a limit and counted beyond it. */
export class KeptOutput {
  readonly #limitBytes: number;
  #chunks: Buffer[] = [];
  #kept = 0;
  #seen = 0;

  constructor(limitBytes: number) {
    this.#limitBytes = limitBytes;
  }

  /** Takes the next base64 chunk. */
  push(base64: string): void {
    const chunk = Buffer.from(base64, "base64");
    this.#seen += chunk.length;
    const room = this.#limitBytes - this.#kept;
    if (room <= 0) return;
    const kept = chunk.length > room ? chunk.subarray(0, room) : chunk;
    this.#chunks.push(kept);
    this.#kept += kept.length;
  }

  /** Bytes that arrived, kept or not. */
  get seenBytes(): number {
    return this.#seen;
  }

  get keptBytes(): number {
    return this.#kept;
  }

  /**
   * What was kept. As `utf8`, invalid bytes become U+FFFD, but a character that only the limit cut in two is left out:
   * it was whole when the command wrote it.
   */
  text(encoding: "utf8" | "base64", truncated: boolean): string {
    const bytes =
      this.#chunks.length === 1 && this.#chunks[0] !== undefined
        ? this.#chunks[0]
        : Buffer.concat(this.#chunks, this.#kept);
    if (encoding === "base64") return bytes.toString("base64");
    if (!truncated) return bytes.toString("utf8");
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes, { stream: true });
  }
}
