/** Words as one line that a shell reads back as the same words. */
export function shellLine(words: readonly string[]): string {
  return words
    .map((word) => (/^[A-Za-z0-9_./:=@%+,-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`))
    .join(" ");
}
