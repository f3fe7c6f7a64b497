/**
 * Where a text stops being JSON: the offset of the first character that cannot be, or its length when it only ends too
 * early. The engine's own messages name a place in some cases and quote the text, which may hold secrets, in others.
 */
export function findJsonBreak(text: string): number {
  const open: ("{" | "[")[] = [];
  let expected: "value" | "first-key" | "key" | "colon" | "comma-or-end" | "first-value" | "nothing" =
    "value";
  let at = 0;
  const afterValue = (): void => {
    expected = open.length === 0 ? "nothing" : "comma-or-end";
  };
  while (at < text.length) {
    const character = text.charAt(at);
    if (" \t\n\r".includes(character)) {
      at += 1;
      continue;
    }
    if (expected === "first-key" && character === "}") {
      open.pop();
      afterValue();
    } else if (expected === "first-value" && character === "]") {
      open.pop();
      afterValue();
    } else if (expected === "value" || expected === "first-value") {
      if (character === "{") {
        open.push("{");
        expected = "first-key";
      } else if (character === "[") {
        open.push("[");
        expected = "first-value";
      } else {
        const end = character === '"' ? stringEnd(text, at) : wordEnd(text, at);
        if (end.broken !== undefined) return end.broken;
        at = end.next - 1;
        afterValue();
      }
    } else if (expected === "first-key" || expected === "key") {
      if (character !== '"') return at;
      const end = stringEnd(text, at);
      if (end.broken !== undefined) return end.broken;
      at = end.next - 1;
      expected = "colon";
    } else if (expected === "colon") {
      if (character !== ":") return at;
      expected = "value";
    } else if (expected === "comma-or-end") {
      const inside = open.at(-1);
      if (character === ",") expected = inside === "{" ? "key" : "value";
      else if (character === (inside === "{" ? "}" : "]")) {
        open.pop();
        afterValue();
      } else return at;
    } else return at;
    at += 1;
  }
  return text.length;
}

type End = { next: number; broken?: undefined } | { broken: number };

function stringEnd(text: string, start: number): End {
  for (let at = start + 1; at < text.length; at += 1) {
    const character = text.charAt(at);
    if (character === '"') return { next: at + 1 };
    if (character < " ") return { broken: at };
    if (character === "\\") {
      at += 1;
      const escaped = text.charAt(at);
      if (escaped === "u") {
        if (!/^[0-9a-fA-F]{4}$/.test(text.slice(at + 1, at + 5)))
          return { broken: Math.min(at + 1, text.length) };
        at += 4;
      } else if (!'"\\/bfnrt'.includes(escaped) || escaped === "")
        return { broken: Math.min(at, text.length) };
    }
  }
  return { broken: text.length };
}

const WORD = /(?:-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null)(?![\w.+-])/y;

function wordEnd(text: string, start: number): End {
  WORD.lastIndex = start;
  const match = WORD.exec(text);
  return match === null ? { broken: start } : { next: start + match[0].length };
}
