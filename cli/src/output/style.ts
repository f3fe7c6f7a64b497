type Paint = (text: string) => string;

/** Terminal colours, or nothing at all. */
export interface Style {
  bold: Paint;
  dim: Paint;
  red: Paint;
  green: Paint;
  yellow: Paint;
  cyan: Paint;
}

const paint =
  (open: number, close: number) =>
  (text: string): string =>
    `\u001b[${open}m${text}\u001b[${close}m`;

const COLOURS: Style = {
  bold: paint(1, 22),
  dim: paint(2, 22),
  red: paint(31, 39),
  green: paint(32, 39),
  yellow: paint(33, 39),
  cyan: paint(36, 39),
};

const plain = (text: string): string => text;
const PLAIN: Style = { bold: plain, dim: plain, red: plain, green: plain, yellow: plain, cyan: plain };

/** Colours for a stream: none when it is not a terminal, when NO_COLOR is set (no-color.org) or TERM is `dumb`. */
export function styleFor(stream: { isTTY?: boolean | undefined }, env: NodeJS.ProcessEnv): Style {
  const off = env["NO_COLOR"] !== undefined && env["NO_COLOR"] !== "";
  return stream.isTTY === true && !off && env["TERM"] !== "dumb" ? COLOURS : PLAIN;
}
