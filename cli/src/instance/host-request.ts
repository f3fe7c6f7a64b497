import { request } from "node:http";
import { CodedError } from "@torpor/protocol";

export interface HostRequest {
  socketPath: string;
  token: string;
  method: "GET" | "POST";
  path: string;
  timeoutMs: number;
}

/** Asks the host over its unix socket. @throws CodedError when it does not answer, or answers with an error */
export async function hostRequest({
  socketPath,
  token,
  method,
  path,
  timeoutMs,
}: HostRequest): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const fail = (why: string): void =>
      reject(
        new CodedError("host_unavailable", `${method} ${path} on the host at ${socketPath} failed: ${why}`),
      );
    const call = request(
      {
        socketPath,
        method,
        path,
        headers: { authorization: `Bearer ${token}`, host: "host" },
        timeout: timeoutMs,
      },
      (response) => {
        const chunks: Buffer[] = [];
        response.on("data", (chunk: Buffer) => chunks.push(chunk));
        response.on("error", (error) => fail(error.message));
        response.on("end", () => {
          const text = Buffer.concat(chunks).toString("utf8");
          let body: unknown = null;
          try {
            body = text === "" ? null : JSON.parse(text);
          } catch {
            return fail("its answer is not JSON");
          }
          const status = response.statusCode ?? 0;
          if (status >= 200 && status < 300) return resolve(body);
          reject(
            CodedError.fromEnvelope(
              body,
              "host_unavailable",
              `the host answered ${status} to ${method} ${path}`,
            ),
          );
        });
      },
    );
    call.on("timeout", () => call.destroy(new Error(`no answer within ${timeoutMs / 1000} s`)));
    call.on("error", (error) => fail(error.message));
    call.end();
  });
}
