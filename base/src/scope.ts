/** A release: called once, never with a signal, since letting go must not be cancelled. */
export type Release = () => void | Promise<void>;

/**
 * Owns resources and lets go of them in reverse order. Acquire, then `defer` on the next line; every release runs
 * even when an earlier one throws, and what was thrown comes out as one `AggregateError`.
 *
 *     await using scope = new Scope();
 *     const server = await listen(); scope.defer(() => server.close());
 *     return scope.move(); // hand over: the caller now owns them
 */
export class Scope implements AsyncDisposable {
  #releases: Release[] = [];
  #closing: Promise<void> | undefined;

  /** Registers a release. On a closed scope it runs at once, so that nothing acquired late is lost. */
  defer(release: Release): void {
    if (this.#closing !== undefined) {
      this.#closing = this.#releaseAfter(this.#closing, release);
      this.#closing.catch(() => {}); // the next close reports it; nobody may be waiting now
      return;
    }
    this.#releases.push(release);
  }

  async #releaseAfter(closing: Promise<void>, release: Release): Promise<void> {
    try {
      await closing;
    } finally {
      await release();
    }
  }

  /** Hands all releases over to a new scope and leaves this one empty. */
  move(): Scope {
    const next = new Scope();
    next.#releases = this.#releases;
    this.#releases = [];
    return next;
  }

  /** Runs every release, last first. Idempotent: a second call joins the first. @throws AggregateError */
  close(): Promise<void> {
    this.#closing ??= this.#run();
    return this.#closing;
  }

  async #run(): Promise<void> {
    const errors: unknown[] = [];
    for (let release = this.#releases.pop(); release !== undefined; release = this.#releases.pop()) {
      try {
        await release();
      } catch (error) {
        errors.push(error);
      }
    }
    if (errors.length > 0)
      throw new AggregateError(
        errors,
        `${errors.length} release(s) failed: ${errors.map(String).join("; ")}`,
      );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
