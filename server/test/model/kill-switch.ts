/**
 * Ends one server at a chosen moment, as `kill -9` does: every read or write of its store and every call to its host is
 * a point, before and after; once it is killed, all of them fail and none takes effect.
 */
export class KillSwitch {
  dead = false;
  /** Points passed so far. */
  passed = 0;
  /** Where it was killed. */
  at: string | undefined;
  readonly #onKill: (() => void)[] = [];
  #killAfter = Number.POSITIVE_INFINITY;

  /** Kills at the `count`-th point from now. */
  arm(count: number): void {
    this.#killAfter = this.passed + count;
  }

  disarm(): void {
    this.#killAfter = Number.POSITIVE_INFINITY;
  }

  onKill(action: () => void): void {
    this.#onKill.push(action);
  }

  kill(at: string): void {
    if (this.dead) return;
    this.dead = true;
    this.at = at;
    for (const action of this.#onKill) action();
  }

  /** @throws Error once it is dead */
  point(name: string): void {
    if (!this.dead) {
      this.passed += 1;
      if (this.passed >= this.#killAfter) this.kill(name);
    }
    if (this.dead) throw new Error(`this server was killed at ${this.at}`);
  }
}
