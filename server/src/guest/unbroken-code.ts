import type { IncomingMessage } from "node:http";
import { CodedError } from "@torpor/protocol";
import { codeLines, type ToldLine } from "./code-lines.ts";
import type { Interruptions } from "./interruptions.ts";

/** In the answer of a code server that holds the execution for whoever is cut off. */
export const EXECUTION_HEADER = "x-torpor-execution";

/** The connection to an execution broke for good; `cause` is what broke it first. */
export class CodeLost extends Error {
  constructor(cause: unknown) {
    super("the connection to the code broke off", { cause });
    this.name = "CodeLost";
  }
}

/** What is asked of a code server about one execution. */
export interface HeldCode {
  /** Begins it; a second time it gives the first. */
  execute: () => Promise<IncomingMessage>;
  /** Its lines from this number on: whoever asks has those before. */
  linesFrom: (number: number) => Promise<IncomingMessage>;
  /** The code server has answered: it holds the execution, and keeps its time limit, or the connection is all it has. */
  onBegun?: (isHeld: boolean) => void;
}

/**
 * The lines of an execution over as many streams as it takes: a long one comes in parts, and one that a snapshot, a fork or a
 * pause cuts off is gone on with where it broke, nothing lost and nothing twice.
 *
 * @throws CodeLost when it has begun and cannot be gone on with; before that, what kept it from beginning
 */
export async function* unbrokenCode(
  { execute, linesFrom, onBegun }: HeldCode,
  interruptions: Interruptions,
  signal: AbortSignal,
): AsyncGenerator<ToldLine> {
  let has = 0;
  let hasBegun = false;
  let isHeld = false;
  let cut: { by: unknown } | undefined;
  for (;;) {
    let answer: IncomingMessage | undefined;
    try {
      answer = await (hasBegun ? linesFrom(has) : execute());
      if (!hasBegun) {
        hasBegun = true;
        isHeld = answer.headers[EXECUTION_HEADER] !== undefined;
        onBegun?.(isHeld);
      }
      let isInParts = false;
      for await (const told of linesUntil(signal, answer)) {
        interruptions.passed();
        cut = undefined;
        const { type } = told.line;
        if (isHeld && type === "continue") {
          isInParts = true;
          continue;
        }
        if (type !== "keepalive") has += 1;
        yield told;
      }
      if (!isInParts) return;
    } catch (error) {
      // What came whole and is not to be read is no cut.
      if (answer !== undefined && error instanceof CodedError) throw error;
      cut ??= { by: error };
      if ((hasBegun && !isHeld) || !(await interruptions.pass(error)))
        throw hasBegun ? new CodeLost(cut.by) : cut.by;
    }
  }
}

async function* linesUntil(signal: AbortSignal, answer: IncomingMessage): AsyncGenerator<ToldLine> {
  const cut = (): void => void answer.destroy();
  signal.addEventListener("abort", cut, { once: true });
  try {
    if (signal.aborted) cut();
    yield* codeLines(answer);
  } finally {
    signal.removeEventListener("abort", cut);
    answer.destroy();
  }
}
