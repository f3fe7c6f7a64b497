import { CodedError, type CodeExecution, codeErrorSchema } from "@torpor/protocol";
import type { CodeLine } from "./code-lines.ts";

/** Largest answer gathered in memory, bytes of lines. */
const MAX_GATHERED_BYTES = 64 * 1024 * 1024;

/** Gathers an execution's lines into one answer. @throws CodedError unsupported when they are too large for one */
export async function gatherCode(progress: AsyncIterable<CodeLine>): Promise<CodeExecution> {
  const execution: CodeExecution = {
    results: [],
    stdout: "",
    stderr: "",
    error: null,
    execution_count: null,
  };
  let bytes = 0;
  for await (const line of progress) {
    bytes += JSON.stringify(line).length;
    if (bytes > MAX_GATHERED_BYTES) {
      throw new CodedError(
        "unsupported",
        `the code showed more than the ${MAX_GATHERED_BYTES} bytes one answer holds; ask for application/x-ndjson to get it as it comes`,
      );
    }
    const { type, ...rest } = line;
    if (type === "stdout" || type === "stderr")
      execution[type] += typeof rest["text"] === "string" ? rest["text"] : "";
    else if (type === "result") execution.results.push(rest);
    else if (type === "error") execution.error = codeErrorSchema.safeParse(rest).data ?? unreadableError;
    else if (type === "number_of_executions" && Number.isInteger(rest["execution_count"]))
      execution.execution_count = Number(rest["execution_count"]);
  }
  return execution;
}

const unreadableError = {
  name: "Error",
  value: "the code server told of an error it did not name",
  traceback: "",
};
