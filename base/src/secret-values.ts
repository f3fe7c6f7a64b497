/** Shorter values are let be: replacing every `a` would hide nothing and leave nothing to read. */
const MIN_CHARACTERS = 4;
const HIDDEN = "[redacted]";

/**
 * Values that no text may tell: logs and error answers go through {@link SecretValues.redact} on their way out. A value
 * is held while something is done with it; patterns hold always.
 */
export class SecretValues {
  readonly #patterns: readonly RegExp[];
  /** How often each value is held. */
  readonly #held = new Map<string, number>();

  /** `patterns` must be global; what they match is a secret wherever it stands. */
  constructor(patterns: readonly RegExp[] = []) {
    this.#patterns = patterns;
  }

  /** Redacts these until the answer is called. */
  hold(values: Iterable<string>): () => void {
    const forms = [...values].filter((value) => value.length >= MIN_CHARACTERS).flatMap(formsOf);
    for (const form of forms) this.#held.set(form, (this.#held.get(form) ?? 0) + 1);
    let isHeld = true;
    return () => {
      if (!isHeld) return;
      isHeld = false;
      for (const form of forms) {
        const left = (this.#held.get(form) ?? 1) - 1;
        if (left === 0) this.#held.delete(form);
        else this.#held.set(form, left);
      }
    };
  }

  /** The text without them. */
  redact(text: string): string {
    let shown = text;
    for (const pattern of this.#patterns) shown = shown.replace(pattern, HIDDEN);
    // The longest first: one may be part of another.
    const values =
      this.#held.size === 0 ? [] : [...this.#held.keys()].toSorted((a, b) => b.length - a.length);
    for (const value of values) if (shown.includes(value)) shown = shown.replaceAll(value, () => HIDDEN);
    return shown;
  }
}

/** A value as it is, and as it stands in JSON, and in JSON that stands in JSON. */
function formsOf(value: string): string[] {
  const escaped = (text: string): string => JSON.stringify(text).slice(1, -1);
  return [...new Set([value, escaped(value), escaped(escaped(value))])];
}

/** A copy of a value of JSON, every string in it redacted. */
export function redactJson<T>(value: T, redact: (text: string) => string): T {
  return JSON.parse(JSON.stringify(value), (_key, part: unknown) =>
    typeof part === "string" ? redact(part) : part,
  ) as T;
}
