import type { Server as HttpServer } from "node:http";
import type { Server } from "node:net";
import type { AddressBlock } from "./address-plan.ts";
import { DnsForwarder } from "./dns-forwarder.ts";
import type { DnsUpstream } from "./dns-upstream.ts";
import type { EgressPolicy } from "./egress-policy.ts";
import type { GatePorts } from "./egress-rules.ts";
import { GateConnections } from "./gate-connections.ts";
import { createHttpFilter } from "./http-filter.ts";
import { listenOnPort } from "./listen-on-port.ts";
import { SlotPolicies } from "./slot-policies.ts";
import { createTlsFilter } from "./tls-filter.ts";

export interface EgressGateOptions {
  block: AddressBlock;
  upstream: DnsUpstream;
  /** Ports an earlier host process listened on, tried first: what a sandbox has open to them comes back to them. */
  ports?: GatePorts | undefined;
  /** Told of each connection that was refused, and why. */
  onRefused: (slot: number, why: string) => void;
}

/**
 * What the kernel's rules leave to this process: names. The router sends it the questions of all sandboxes to their
 * resolver, and the connections to ports 80 and 443 of those whose policy has names. It listens on the host's end of the
 * uplink, where only the router reaches it; while no host process lives, what needs it is refused.
 */
export class EgressGate {
  readonly address: string;
  readonly ports: GatePorts;
  readonly #connections: GateConnections;
  readonly #dns: DnsForwarder;
  readonly #servers: readonly (Server | HttpServer)[];

  private constructor(
    address: string,
    ports: GatePorts,
    connections: GateConnections,
    dns: DnsForwarder,
    servers: readonly (Server | HttpServer)[],
  ) {
    this.address = address;
    this.ports = ports;
    this.#connections = connections;
    this.#dns = dns;
    this.#servers = servers;
  }

  static async listen({ block, upstream, ports, onRefused }: EgressGateOptions): Promise<EgressGate> {
    const address = block.hostAddress;
    const connections = new GateConnections(new SlotPolicies(block));
    const dns = new DnsForwarder(connections.policies, upstream);
    const filter = { connections, upstream, onRefused };
    const http = createHttpFilter(filter);
    const tls = createTlsFilter(filter);
    const gate = { dns: 0, http: 0, tls: 0 };
    const opened = new EgressGate(address, gate, connections, dns, [http, tls]);
    try {
      gate.dns = await dns.listen(address, ports?.dns);
      gate.http = await listenOnPort(ports?.http, (port) => listen(http, port, address));
      gate.tls = await listenOnPort(ports?.tls, (port) => listen(tls, port, address));
    } catch (error) {
      opened.close();
      throw error;
    }
    return opened;
  }

  /** Puts a slot under a policy; resets its connections that the policy forbids. */
  set(slot: number, policy: EgressPolicy): void {
    this.#connections.policies.set(slot, policy);
    this.#connections.recheck(slot);
  }

  policyOf(slot: number): EgressPolicy | undefined {
    return this.#connections.policies.of(slot);
  }

  /** The slot is gone, and all it had open with it. */
  forget(slot: number): void {
    this.#connections.policies.delete(slot);
    this.#connections.recheck(slot);
    this.#dns.forget(slot);
  }

  close(): void {
    for (const server of this.#servers) server.close();
    this.#dns.close();
    this.#connections.resetAll();
  }
}

function listen(server: Server | HttpServer, port: number, address: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const fail = (error: Error): void => reject(error);
    server.once("error", fail);
    server.listen(port, address, () => {
      server.off("error", fail);
      // Out of descriptors, most likely: the caller is not served, others go on.
      server.on("error", () => {});
      resolve();
    });
  });
}
