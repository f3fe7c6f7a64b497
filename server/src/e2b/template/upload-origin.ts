import type { IncomingMessage } from "node:http";
import { CodedError } from "@torpor/protocol";

const HOST = /^[A-Za-z0-9.\-_:[\]]+$/;

/** The origin by which this client reaches the server, behind a proxy that ends TLS too. @throws CodedError invalid_request for a Host that is none */
export function uploadOrigin({ headers, socket }: Pick<IncomingMessage, "headers" | "socket">): string {
  const isTls = "encrypted" in socket || headers["x-forwarded-proto"] === "https";
  const { host = "localhost" } = headers;
  const origin = `${isTls ? "https" : "http"}://${host}`;
  if (!HOST.test(host) || !URL.canParse(origin))
    throw new CodedError("invalid_request", `the Host header '${host.slice(0, 200)}' is not a host`);
  return origin;
}
