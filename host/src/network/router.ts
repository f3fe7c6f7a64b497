import { type Log, run, silentLog } from "@torpor/base";
import { CodedError, type NetworkPolicy } from "@torpor/protocol";
import type { Instance } from "../instance.ts";
import {
  type AddressBlock,
  addressBlock,
  BLOCK_COUNT,
  GATEWAY_ADDRESS,
  GATEWAY_MAC,
  GUEST_ADDRESS,
  GUEST_MAC,
  GUEST_PREFIX_LENGTH,
  routeTouchesBlock,
} from "./address-plan.ts";
import { DnsUpstream } from "./dns-upstream.ts";
import { EgressGate } from "./egress-gate.ts";
import type { GatePorts } from "./egress-rules.ts";
import { forgetFlows } from "./forget-flows.ts";
import { turnForwardingBack, turnForwardingOn } from "./ip-forward.ts";
import { refuseAttempts } from "./refuse-attempts.ts";
import { hostRules, routerRules } from "./router-rules.ts";
import { SlotEgress } from "./slot-egress.ts";

/** What a router leaves for the next host process of its instance. */
export interface RouterMemory {
  /** Index of its address block. */
  block: number;
  /** Of its gate; absent in a journal of an earlier version. */
  ports?: GatePorts;
}

/** A slot's place in the network. */
export interface SlotNetwork {
  slot: number;
  netns: string;
  /** Where the host reaches the guest. */
  address: string;
}

/**
 * The router: one network namespace of this instance, between the host's own namespace and one namespace per slot.
 *
 *     host ns --- uplink --- router ns --- s<n> --- slot ns (runsc takes it over)
 *
 * All rules about sandboxes live in it, so that deleting it undoes them. Address translation is stateless: runsc
 * bypasses the IP stack of its namespace, and every guest has the same address, so the router writes the slot's
 * outside address as source of what comes from `s<n>` before routing and the guest's as destination of what leaves
 * by it. In the host's own namespace stand one link, one route and one nft table.
 *
 * Addresses are judged by the rules, names by the gate (`egress-gate.ts`). Plain internet costs a slot no rule.
 */
export class Router {
  readonly #instance: Instance;
  readonly #block: AddressBlock;
  readonly #log: Log;
  /** Slots that are refused new connections, or may be after a failure. */
  readonly #closed = new Set<number>();
  /** Listens once the uplink is there. */
  #opened: { gate: EgressGate; egress: SlotEgress } | undefined;

  private constructor(instance: Instance, block: AddressBlock, log: Log) {
    this.#instance = instance;
    this.#block = block;
    this.#log = log;
  }

  get #open(): { gate: EgressGate; egress: SlotEgress } {
    if (this.#opened === undefined) throw new Error("the router's gate is not open");
    return this.#opened;
  }

  /** State to hand to the next {@link Router.open} of this instance, for the journal. */
  get memory(): RouterMemory {
    return { block: this.#block.index, ports: this.#open.gate.ports };
  }

  /**
   * Makes the router, or takes over the one an earlier host left (`memory` is what that one remembered). Rules are
   * loaded anew in one transaction; `egress` says what each living slot may reach, and all others may nothing.
   *
   * @param resolvers name servers that the sandboxes' questions are passed on to
   */
  static async open(options: {
    instance: Instance;
    memory?: RouterMemory | undefined;
    resolvers: readonly string[];
    egress: ReadonlyMap<number, NetworkPolicy>;
    /** Told of each connection that the gate refused, and why. */
    onRefused?: (slot: number, why: string) => void;
    /** Default: silent. */
    log?: Log;
  }): Promise<Router> {
    const { instance, memory, log = silentLog } = options;
    const existing = memory === undefined ? undefined : new Router(instance, addressBlock(memory.block), log);
    if (existing !== undefined && (await existing.#isWhole())) {
      await existing.#start(options, await existing.slotsInPlace());
      await turnForwardingOn();
      return existing;
    }
    // After a reboot, a crash half-way, or when somebody took it down: whatever stood behind it is out of reach and is
    // ended by adoption.
    await removeRouter(instance);
    const router = new Router(instance, await freeBlock(), log);
    await router.#build();
    await router.#start({ ...options, egress: new Map() }, []);
    await turnForwardingOn();
    return router;
  }

  async #start(
    { memory, resolvers, egress, onRefused = () => {} }: Parameters<typeof Router.open>[0],
    inPlace: Iterable<number>,
  ): Promise<void> {
    const gate = await EgressGate.listen({
      block: this.#block,
      upstream: new DnsUpstream(resolvers),
      ports: memory?.ports,
      onRefused,
    });
    this.#opened = {
      gate,
      egress: new SlotEgress(gate, (rules) => nft(this.#instance.routerNetns, rules)),
    };
    await this.#loadRules(egress, inPlace);
  }

  /** Stops answering for sandboxes; rules and links stay. */
  close(): void {
    this.#open.gate.close();
  }

  /** Whether it was built to the end: the host's route is the last thing made. */
  async #isWhole(): Promise<boolean> {
    if (!(await listNetns()).includes(this.#instance.routerNetns)) return false;
    const { stdout } = await run(["ip", "-json", "-4", "route", "show", this.#block.cidr]);
    return (
      stdout.trim() !== "" &&
      (JSON.parse(stdout) as { dev?: string }[]).some(({ dev }) => dev === this.#instance.uplink)
    );
  }

  async #build(): Promise<void> {
    const { routerNetns, uplink } = this.#instance;
    const { hostAddress, routerAddress, cidr } = this.#block;
    await ipBatch(undefined, [
      `netns add ${routerNetns}`,
      `link add ${uplink} type veth peer name up0 netns ${routerNetns}`,
    ]);
    await run([
      "ip",
      "netns",
      "exec",
      routerNetns,
      "sysctl",
      "-qw",
      "net.ipv4.ip_forward=1",
      "net.ipv4.conf.all.rp_filter=0",
      "net.ipv4.conf.default.rp_filter=0",
      "net.ipv4.conf.all.send_redirects=0",
      "net.ipv4.conf.default.send_redirects=0",
      "net.ipv6.conf.all.disable_ipv6=1",
      "net.ipv6.conf.default.disable_ipv6=1",
    ]);
    await ipBatch(routerNetns, [
      "link set lo up",
      `addr add ${routerAddress} peer ${hostAddress} dev up0`,
      "link set up0 up",
      `route add default via ${hostAddress}`,
    ]);
    await ipBatch(undefined, [
      `addr add ${hostAddress} peer ${routerAddress} dev ${uplink}`,
      `link set ${uplink} up`,
      `route add ${cidr} via ${routerAddress} dev ${uplink}`,
    ]);
  }

  /** All rules anew, in one transaction for each namespace: there is no moment without. */
  async #loadRules(known: ReadonlyMap<number, NetworkPolicy>, inPlace: Iterable<number>): Promise<void> {
    const { nftTable, uplink, routerNetns } = this.#instance;
    const { gate, egress } = this.#open;
    const slots = egress.adopt(known, inPlace);
    await nft(routerNetns, `${routerRules(this.#block, gate.ports)}${slots}`);
    await nft(undefined, hostRules(nftTable, uplink, this.#block, gate.ports));
  }

  /** Makes the namespace and the link of a slot. On an error nothing of it stays. */
  async addSlot(slot: number, egress: NetworkPolicy): Promise<SlotNetwork> {
    const { routerNetns } = this.#instance;
    const netns = this.#instance.slotNetns(slot);
    const address = this.#block.slotAddress(slot);
    try {
      await ipBatch(undefined, [
        `netns add ${netns}`,
        `link add s${slot} address ${GATEWAY_MAC} netns ${routerNetns} type veth peer name eth0 address ${GUEST_MAC} netns ${netns}`,
      ]);
      await Promise.all([
        ipBatch(routerNetns, [
          `addr add ${GATEWAY_ADDRESS}/32 dev s${slot}`,
          `link set s${slot} up`,
          `route add ${address}/32 dev s${slot}`,
          `neigh add ${address} lladdr ${GUEST_MAC} dev s${slot} nud permanent`,
        ]),
        ipBatch(netns, [
          `addr add ${GUEST_ADDRESS}/${GUEST_PREFIX_LENGTH} dev eth0`,
          "link set lo up",
          "link set eth0 up",
          `route add default via ${GATEWAY_ADDRESS}`,
          // The runtime takes it over: what is restored need not ask for it first.
          `neigh add ${GATEWAY_ADDRESS} lladdr ${GATEWAY_MAC} dev eth0 nud permanent`,
        ]),
        // Before the link is up in either namespace nothing can have left by it.
        this.setEgress(slot, egress),
      ]);
    } catch (error) {
      await this.removeSlot(slot);
      throw error;
    }
    return { slot, netns, address };
  }

  /**
   * Changes what a slot may reach, in force when this returns. What is under way and not allowed any more is cut: at its
   * next packet, or at once when it passes by the gate. On an error all stays as it was.
   */
  setEgress(slot: number, network: NetworkPolicy): Promise<void> {
    return this.#open.egress.set(slot, network);
  }

  /**
   * Refuses the connections that a slot is making and that have had no answer, and every new one while `act` runs: its
   * runtime can write no machine that is making one. When they cannot be refused `act` runs all the same.
   */
  async withoutAttempts<T>(slot: number, act: () => Promise<T>): Promise<T> {
    const { routerNetns } = this.#instance;
    this.#closed.add(slot);
    try {
      await nft(routerNetns, `add ${closedElement(slot)}`);
      await refuseAttempts(routerNetns, this.#block.slotAddress(slot));
    } catch (error) {
      this.#log.error({ op: "router.refuseAttempts", slot, err: error });
    }
    try {
      return await act();
    } finally {
      await this.#admitAttempts(slot);
    }
  }

  /** What `withoutAttempts` has done is done, whether or not this succeeds. Idempotent. Never rejects. */
  async #admitAttempts(slot: number): Promise<void> {
    if (!this.#closed.has(slot)) return;
    const element = closedElement(slot);
    try {
      // Added first, since one that is not there cannot be deleted.
      await nft(this.#instance.routerNetns, `add ${element}\ndelete ${element}`);
      this.#closed.delete(slot);
    } catch (error) {
      this.#log.error({ op: "router.admitAttempts", slot, err: error }, "its element ends by itself");
    }
  }

  /**
   * Removes all of a slot that exists. Idempotent. While flows to it cannot be forgotten an empty namespace stands for it: it
   * is among {@link Router.slotsInPlace}, and cannot be made anew, until this is tried again.
   */
  async removeSlot(slot: number): Promise<void> {
    const { gate, egress } = this.#open;
    const netns = this.#instance.slotNetns(slot);
    gate.forget(slot);
    let isForgotten = true;
    await Promise.all([
      // The link before its rules: what still runs behind it must not find them gone.
      ipBatch(this.#instance.routerNetns, [`link del s${slot}`], { force: true }).then(() =>
        Promise.all([
          egress.forget(slot),
          this.#admitAttempts(slot),
          forgetFlows(this.#block.slotAddress(slot)).catch((error: unknown) => {
            isForgotten = false;
            this.#log.error(
              { op: "router.forgetFlows", slot, err: error },
              "the slot is kept until they are",
            );
          }),
        ]),
      ),
      ipBatch(undefined, [`netns del ${netns}`], { force: true }),
    ]);
    if (!isForgotten) await ipBatch(undefined, [`netns add ${netns}`]);
  }

  /** Removes the router and all that hangs on it, and puts ip_forward back as it was found. */
  async remove(): Promise<void> {
    this.close();
    await removeRouter(this.#instance);
    if (!(await otherInstanceUp(this.#instance))) await turnForwardingBack();
  }

  /** Slots that have a namespace or a link, whether or not anybody knows of them. */
  async slotsInPlace(): Promise<Set<number>> {
    const slots = new Set<number>();
    for (const name of await listNetns()) {
      const match = this.#instance.slotNetnsPattern.exec(name);
      if (match !== null) slots.add(Number(match[1]));
    }
    const { stdout } = await run(["ip", "-n", this.#instance.routerNetns, "-json", "link", "show"]);
    for (const link of JSON.parse(stdout) as { ifname: string }[]) {
      const match = /^s(\d+)$/.exec(link.ifname);
      if (match !== null) slots.add(Number(match[1]));
    }
    return slots;
  }
}

function closedElement(slot: number): string {
  return `element ip torpor closed { "s${slot}" }`;
}

async function removeRouter(instance: Instance): Promise<void> {
  const names = await listNetns();
  const mine = names.filter((name) => instance.slotNetnsPattern.test(name) || name === instance.routerNetns);
  if (await linkExists(instance.uplink))
    await ipBatch(undefined, [`link del ${instance.uplink}`], { force: true });
  await ipBatch(
    undefined,
    mine.map((name) => `netns del ${name}`),
    { force: true },
  );
  await nft(undefined, `table inet ${instance.nftTable} {}\ndelete table inet ${instance.nftTable}`);
}

async function otherInstanceUp(instance: Instance): Promise<boolean> {
  return (await listNetns()).some(
    (name) => /^torpor-[0-9a-f]{6}$/.test(name) && name !== instance.routerNetns,
  );
}

/** Picks a /20 that no route of the host covers, so that several instances and foreign networks stay apart. */
async function freeBlock(): Promise<AddressBlock> {
  const { stdout } = await run(["ip", "-json", "-4", "route", "show", "table", "all"]);
  const destinations = (JSON.parse(stdout) as { dst: string }[]).map((route) => route.dst);
  const free = Array.from({ length: BLOCK_COUNT }, (_, index) => addressBlock(index)).filter(
    (block) => !destinations.some((destination) => routeTouchesBlock(destination, block)),
  );
  const picked = free[Math.floor(Math.random() * free.length)];
  if (picked === undefined) {
    throw new CodedError(
      "capacity_exhausted",
      `all ${BLOCK_COUNT} address blocks of 198.18.0.0/15 are routed already; stop another instance first`,
    );
  }
  return picked;
}

async function listNetns(): Promise<string[]> {
  const { stdout } = await run(["ip", "-json", "netns", "list"]);
  if (stdout.trim() === "") return [];
  return (JSON.parse(stdout) as { name: string }[]).map((entry) => entry.name);
}

async function linkExists(name: string): Promise<boolean> {
  const { stdout } = await run(["ip", "-json", "link", "show"]);
  return (JSON.parse(stdout) as { ifname: string }[]).some((link) => link.ifname === name);
}

/** Runs several `ip` commands in one process. With `force` the rest runs after one fails, and failures are ignored. */
async function ipBatch(
  netns: string | undefined,
  lines: readonly string[],
  options: { force?: boolean } = {},
): Promise<void> {
  if (lines.length === 0) return;
  const where = netns === undefined ? [] : ["-n", netns];
  const argv: [string, ...string[]] = ["ip", ...where, ...(options.force ? ["-force"] : []), "-batch", "-"];
  try {
    await run(argv, { input: `${lines.join("\n")}\n`, timeoutMs: 20_000 });
  } catch (error) {
    if (options.force !== true) throw error;
  }
}

async function nft(netns: string | undefined, script: string): Promise<void> {
  const argv: [string, ...string[]] = ["nft", "-f", "-"];
  await run(netns === undefined ? argv : ["ip", "netns", "exec", netns, ...argv], {
    input: `${script}\n`,
    timeoutMs: 20_000,
  });
}
