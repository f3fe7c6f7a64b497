import { run } from "@torpor/base";
import { CodedError } from "@torpor/protocol";
import type { Instance } from "../instance.ts";
import {
  type AddressBlock,
  addressBlock,
  BLOCK_COUNT,
  DENIED_DESTINATIONS,
  GATEWAY_ADDRESS,
  GATEWAY_MAC,
  GUEST_ADDRESS,
  GUEST_MAC,
  GUEST_PREFIX_LENGTH,
  routeTouchesBlock,
  MAX_SLOT,
} from "./address-plan.ts";
import { turnForwardingBack, turnForwardingOn } from "./ip-forward.ts";

/** What egress a slot has. */
export type Egress = "internet" | "none";

/** What a router leaves for the next host process of its instance. */
export interface RouterMemory {
  /** Index of its address block. */
  block: number;
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
 */
export class Router {
  readonly #instance: Instance;
  readonly #block: AddressBlock;
  /** Slots in the set `offline`. */
  readonly #offline = new Set<number>();

  private constructor(instance: Instance, block: AddressBlock) {
    this.#instance = instance;
    this.#block = block;
  }

  /** State to hand to the next {@link Router.open} of this instance, for the journal. */
  get memory(): RouterMemory {
    return { block: this.#block.index };
  }

  /**
   * Makes the router, or takes over the one an earlier host left (`memory` is what that one remembered). Rules are
   * loaded anew in one transaction; `egress` says what each living slot may reach.
   */
  static async open(options: {
    instance: Instance;
    memory?: RouterMemory | undefined;
    resolvers: readonly string[];
    egress: ReadonlyMap<number, Egress>;
  }): Promise<Router> {
    const { instance, memory } = options;
    const existing = memory === undefined ? undefined : new Router(instance, addressBlock(memory.block));
    if (existing !== undefined && (await existing.#isWhole())) {
      await existing.#loadRules(options.resolvers, options.egress);
      await turnForwardingOn();
      return existing;
    }
    // After a reboot, a crash half-way, or when somebody took it down: whatever stood behind it is out of reach and is
    // ended by adoption.
    await removeRouter(instance);
    const router = new Router(instance, await freeBlock());
    await router.#build();
    await router.#loadRules(options.resolvers, new Map());
    await turnForwardingOn();
    return router;
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

  async #loadRules(resolvers: readonly string[], egress: ReadonlyMap<number, Egress>): Promise<void> {
    const { nftTable, uplink, routerNetns } = this.#instance;
    // All slots there can be, once: neither making nor removing one then changes a rule.
    const sources = Array.from(
      { length: MAX_SLOT },
      (_, index) => `s${index + 1} : ${this.#block.slotAddress(index + 1)}`,
    ).join(", ");
    const offline = [...egress]
      .filter(([, policy]) => policy === "none")
      .map(([slot]) => `s${slot}`)
      .join(", ");
    const elements = (list: string): string => (list === "" ? "" : `elements = { ${list} }`);
    await nft(
      routerNetns,
      `
table ip torpor {}
delete table ip torpor
table ip torpor {
  map guest_source { type ifname : ipv4_addr; ${elements(sources)} }
  set offline { type ifname; ${elements(offline)} }
  set resolvers { type ipv4_addr; ${elements(resolvers.join(", "))} }
  chain from_guest {
    type filter hook prerouting priority -310; policy accept;
    iifname "s*" ip saddr != ${GUEST_ADDRESS} drop
    iifname "s*" ip saddr set iifname map @guest_source
  }
  chain to_guest {
    type filter hook postrouting priority 310; policy accept;
    oifname "s*" ip daddr set ${GUEST_ADDRESS}
  }
  chain forward {
    type filter hook forward priority 0; policy drop;
    iifname "up0" oifname "s*" accept
    iifname "s*" oifname "s*" jump refuse
    iifname "s*" ct state established,related accept
    iifname @offline jump refuse
    iifname "s*" ip daddr @resolvers meta l4proto { tcp, udp } th dport 53 accept
    iifname "s*" ip daddr { ${DENIED_DESTINATIONS.join(", ")} } jump refuse
    iifname "s*" oifname "up0" accept
  }
  chain refuse {
    meta l4proto tcp reject with tcp reset
    reject with icmp admin-prohibited
  }
  chain input {
    type filter hook input priority 0; policy drop;
    iifname "up0" accept
    ct state established,related accept
  }
}
table ip6 torpor {}
delete table ip6 torpor
table ip6 torpor {
  chain forward { type filter hook forward priority 0; policy drop; }
  chain input { type filter hook input priority 0; policy drop; }
}
`,
    );
    for (const [slot, policy] of egress) if (policy === "none") this.#offline.add(slot);
    // The host's own services are refused whatever address they listen on; only answers to the host's own
    // connections come in. Nothing from outside starts a connection to a sandbox.
    await nft(
      undefined,
      `
table inet ${nftTable} {}
delete table inet ${nftTable}
table inet ${nftTable} {
  chain input {
    type filter hook input priority -5; policy accept;
    iifname "${uplink}" ct state established,related accept
    iifname "${uplink}" drop
  }
  chain forward {
    type filter hook forward priority -5; policy accept;
    oifname "${uplink}" ct state established,related accept
    oifname "${uplink}" drop
  }
  chain postrouting {
    type nat hook postrouting priority 100; policy accept;
    ip saddr ${this.#block.cidr} oifname != "${uplink}" masquerade
  }
}
`,
    );
  }

  /** Makes the namespace and the link of a slot. On an error nothing of it stays. */
  async addSlot(slot: number, egress: Egress): Promise<SlotNetwork> {
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
        ]),
        // Before the link is up in either namespace nothing can have left by it.
        egress === "none" ? this.setEgress(slot, "none") : undefined,
      ]);
    } catch (error) {
      await this.removeSlot(slot);
      throw error;
    }
    return { slot, netns, address };
  }

  /** Changes what a slot may reach. Connections under way keep their conntrack entry; new ones obey. */
  async setEgress(slot: number, egress: Egress): Promise<void> {
    // Adding what is there is no error; deleting what is not is one, so it is added first, in the same transaction.
    const element = `element ip torpor offline { s${slot} }`;
    await nft(
      this.#instance.routerNetns,
      egress === "none" ? `add ${element}` : `add ${element}\ndelete ${element}`,
    );
    if (egress === "none") this.#offline.add(slot);
    else this.#offline.delete(slot);
  }

  /** Removes all of a slot that exists. Idempotent. */
  async removeSlot(slot: number): Promise<void> {
    await Promise.all([
      ipBatch(this.#instance.routerNetns, [`link del s${slot}`], { force: true }),
      ipBatch(undefined, [`netns del ${this.#instance.slotNetns(slot)}`], { force: true }),
      this.#offline.has(slot) ? this.setEgress(slot, "internet") : undefined,
    ]);
  }

  /** Removes the router and all that hangs on it, and puts ip_forward back as it was found. */
  async remove(): Promise<void> {
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
