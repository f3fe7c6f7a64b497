// eslint-disable-next-line no-control-regex -- colours are control sequences
const COLOUR = /\u001b\[[0-9;]*m/g;

/** Columns a text takes on a terminal: colours take none, wide East Asian characters and emoji take two. */
export function displayWidth(text: string): number {
  let width = 0;
  for (const character of text.replace(COLOUR, "")) {
    const code = character.codePointAt(0) ?? 0;
    if (/\p{Mark}/u.test(character) || code === 0x200d) continue;
    width += /\p{Emoji_Presentation}/u.test(character) || (code >= 0x1100 && isWide(code)) ? 2 : 1;
  }
  return width;
}

function isWide(code: number): boolean {
  return (
    code <= 0x115f ||
    (code >= 0x2e80 && code <= 0xa4cf) ||
    (code >= 0xac00 && code <= 0xd7a3) ||
    (code >= 0xf900 && code <= 0xfaff) ||
    (code >= 0xfe30 && code <= 0xfe6f) ||
    (code >= 0xff00 && code <= 0xff60) ||
    (code >= 0xffe0 && code <= 0xffe6) ||
    (code >= 0x20000 && code <= 0x3fffd)
  );
}

/** Text as one line that is safe on a terminal: control characters other than our own colours are escaped. */
export function oneLine(text: string): string {
  let safe = "";
  let at = 0;
  for (const match of text.matchAll(COLOUR)) {
    safe += escapeControls(text.slice(at, match.index)) + match[0];
    at = match.index + match[0].length;
  }
  return safe + escapeControls(text.slice(at));
}

function escapeControls(text: string): string {
  return text.replace(/\p{Cc}/gu, (character) => {
    const code = character.codePointAt(0) ?? 0;
    return character === "\n" ? "\\n" : character === "\t" ? " " : `\\x${code.toString(16).padStart(2, "0")}`;
  });
}
