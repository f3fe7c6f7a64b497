import type { IncomingMessage } from "node:http";
import { CodedError, GUEST_PORT } from "@torpor/protocol";
import { PreviewOrigin } from "../../ingress/preview-origin.ts";

/** Which port of which sandbox a request is for. */
export interface VisitTarget {
  sandboxId: string;
  port: number;
  /** Whether its Host says so: then it is at an origin of the port's own. Otherwise its headers do. */
  isOfHost: boolean;
}

/** Reads which port of which sandbox a request is for. */
export class VisitTargets {
  readonly #origin: PreviewOrigin | undefined;

  /** @param domain below which hosts name ports, with its port; undefined for none @throws Error when it is no domain */
  constructor(domain: string | undefined) {
    this.#origin = domain === undefined ? undefined : new PreviewOrigin(`https://${domain}`);
  }

  /**
   * What `E2b-Sandbox-Id` and `E2b-Sandbox-Port` say, else the Host; undefined for a request that names none.
   *
   * @throws CodedError invalid_request for a port that is none, or a host below the domain that names no port
   */
  of({ headers }: IncomingMessage): VisitTarget | undefined {
    const ofHost = this.#origin?.targetOf(headers.host);
    const id = headers["e2b-sandbox-id"];
    // Below the domain the Host alone decides: a page there must not reach another sandbox by a header.
    if (ofHost === undefined && typeof id === "string")
      return { sandboxId: id, port: portOf(headers["e2b-sandbox-port"]), isOfHost: false };
    if (ofHost === "unknown") throw new CodedError("invalid_request", "Invalid host");
    return ofHost === undefined ? undefined : { ...ofHost, isOfHost: true };
  }

  /** Whether a request is for a sandbox. */
  names({ headers }: IncomingMessage): boolean {
    return (
      typeof headers["e2b-sandbox-id"] === "string" || this.#origin?.targetOf(headers.host) !== undefined
    );
  }
}

function portOf(header: string | string[] | undefined): number {
  if (header === undefined) return GUEST_PORT;
  const port = typeof header === "string" && /^\d{1,5}$/.test(header) ? Number(header) : 0;
  if (port < 1 || port > 65_535)
    throw new CodedError("invalid_request", "E2b-Sandbox-Port must be a number from 1 to 65535");
  return port;
}
