import { mkdtempSync, realpathSync, rmSync } from "node:fs";
import { createServer, type Server } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "@torpor/base";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { instanceNames } from "../../host/src/instance.ts";
import { addressBlock, GATEWAY_ADDRESS } from "../../host/src/network/address-plan.ts";
import { FAKE_INTERNET, FakeInternet } from "../src/fake-internet.ts";
import { HttpClient } from "../src/http-client.ts";
import { expectNoLeaks, lookAtMachine, type MachineState } from "../src/leak-check.ts";
import { lookUp } from "../src/look-up.ts";
import { DirectGuest } from "./direct-guest.ts";
import { type GvisorBed, openGvisorBed } from "./gvisor-bed.ts";

/** Tries every target at once and answers what came of each: what the other side said, or the error. */
const PROBE = `
import json, os, socket, concurrent.futures
def probe(target):
    protocol, host, port = target
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
        with socket.socket(family, kind) as s:
            s.settimeout(2)
            s.connect((host, port))
            s.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
            return s.recv(4096).decode().split("\\n")[-1] or "connected"
    except OSError as error:
        return "failed: " + type(error).__name__
targets = json.loads(os.environ["TARGETS"])
with concurrent.futures.ThreadPoolExecutor(32) as pool:
    print(json.dumps(list(pool.map(probe, targets))))
`;

type Target = ["tcp" | "udp", string, number];

interface Sandbox {
  guest: DirectGuest;
  address: string;
  slot: number;
}

const { webServer, privateServer, otherPrivateServer, metadataServer, nameServer, hostAddress } =
  FAKE_INTERNET;

describe("the network of a sandbox", () => {
  let stateDir: string;
  let before: MachineState;
  let bed: GvisorBed;
  let internet: FakeInternet;
  let hostService: Server;
  let servicePort: number;
  let connectionsToHost = 0;
  let online: Sandbox;
  let other: Sandbox;
  let offline: Sandbox;
  let uplinkAddress: string;
  let routerAddress: string;

  beforeAll(async () => {
    stateDir = realpathSync(mkdtempSync(join(tmpdir(), "torpor-test-network-")));
    before = await lookAtMachine(stateDir);
    internet = await FakeInternet.open();
    bed = await openGvisorBed(stateDir, { resolvers: [nameServer] });
    ({ hostAddress: uplinkAddress, routerAddress } = addressBlock(bed.router.memory.block));
    hostService = createServer((socket) => {
      connectionsToHost += 1;
      socket.on("error", () => {});
      socket.end("the host's own service\n");
    });
    await new Promise<void>((resolve) => hostService.listen(0, "0.0.0.0", resolve));
    servicePort = (hostService.address() as { port: number }).port;
    [online, other, offline] = await Promise.all([sandbox("internet"), sandbox("internet"), sandbox("none")]);
    await other.guest.output(
      "cd /tmp && (python3 -m http.server 8000 > /dev/null 2>&1 &) ; for i in $(seq 50); do curl -s 127.0.0.1:8000 > /dev/null && exit 0; sleep 0.1; done; exit 1",
    );
  });

  afterAll(async () => {
    hostService?.close();
    try {
      for (const one of [online, other, offline]) if (one !== undefined) await bed.slots.clear(one.slot);
      await bed?.close();
      await internet?.close();
      await expectNoLeaks(stateDir, before);
    } finally {
      rmSync(stateDir, { recursive: true, force: true });
    }
  });

  async function sandbox(egress: "internet" | "none"): Promise<Sandbox> {
    const place = await bed.slots.make(512, egress);
    await bed.driver.boot(bed.root, place, { cpu: 1, memoryMib: 512 });
    return { guest: await DirectGuest.unlock(place.address), address: place.address, slot: place.slot };
  }

  async function probe({ guest }: Sandbox, targets: Target[]): Promise<Record<string, string>> {
    const answers = JSON.parse(
      await guest.output(`python3 -c '${PROBE}'`, { env: { TARGETS: JSON.stringify(targets) } }),
    ) as string[];
    return Object.fromEntries(targets.map((target, index) => [target.join(" "), answers[index] ?? ""]));
  }

  async function expectUnreachable(from: Sandbox, targets: Target[]): Promise<void> {
    const outcomes = await probe(from, targets);
    expect(Object.entries(outcomes).filter(([, outcome]) => !outcome.startsWith("failed: "))).toEqual([]);
    expect(Object.keys(outcomes)).toHaveLength(targets.length);
  }

  test("reaches the internet, and is seen there under the host's address", async () => {
    expect(
      await probe(online, [
        ["tcp", webServer, 80],
        ["udp", webServer, 5353],
      ]),
    ).toEqual({
      [`tcp ${webServer} 80`]: `seen from ${hostAddress}`,
      [`udp ${webServer} 5353`]: `seen from ${hostAddress}`,
    });
    expect(await online.guest.output(`curl -sS http://${webServer}/`)).toBe(`seen from ${hostAddress}`);
  });

  test("reaches no service of the host, by whichever of its addresses", async () => {
    const control = new HttpClient({ url: `http://${uplinkAddress}:${servicePort}` });
    await expect(control.call("/")).rejects.toThrow(/Parse Error/); // it listens: the answer is no HTTP
    expect(
      (await internet.run(["curl", "-s", "--http0.9", `http://${hostAddress}:${servicePort}/`])).stdout,
    ).toContain("own service");
    const served = connectionsToHost;
    const addresses = new Set([
      uplinkAddress,
      hostAddress,
      routerAddress,
      "10.200.0.1",
      ...(await hostAddresses()),
    ]);
    await expectUnreachable(
      online,
      [...addresses].flatMap((address): Target[] => [
        ["tcp", address, servicePort],
        ["tcp", address, 22],
        ["udp", address, 5353],
      ]),
    );
    expect(await online.guest.output(`curl -s -m 2 http://127.0.0.1:${servicePort}/ || echo refused`)).toBe(
      "refused",
    ); // its own loopback
    expect(connectionsToHost).toBe(served);
  });

  test("reaches no other sandbox, by whichever of its addresses and ports", async () => {
    const control = await new HttpClient({ url: `http://${other.address}:8000` }).call("/");
    expect(control.status).toBe(200);
    await expectUnreachable(online, [
      ["tcp", other.address, 8000],
      ["tcp", other.address, 49_983],
      ["tcp", offline.address, 49_983],
      ["udp", other.address, 5353],
    ]);
  });

  test("reaches no private, shared, link-local or metadata address, though the host does", async () => {
    for (const address of [privateServer, otherPrivateServer, metadataServer]) {
      expect((await run(["curl", "-s", "-m", "3", `http://${address}:8080/`])).stdout).toMatch(/^seen from /);
    }
    const heard = internet.heard.length;
    await expectUnreachable(
      online,
      [
        privateServer,
        otherPrivateServer,
        metadataServer,
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.254",
        "192.168.0.1",
        "100.64.0.1",
        "198.19.0.1",
        "224.0.0.1",
        "255.255.255.255",
      ].flatMap((address): Target[] => [
        ["tcp", address, 8080],
        ["udp", address, 5353],
      ]),
    );
    expect(internet.heard.slice(heard)).toEqual([]);
  });

  test("asks the host's resolver alone, whatever private address it asks on port 53, by UDP and TCP", async () => {
    const heard = internet.heard.length;
    for (const server of [GATEWAY_ADDRESS, privateServer, otherPrivateServer]) {
      for (const over of ["udp", "tcp"] as const)
        expect(await lookUp(online.guest, "allowed.example", { server, over })).toBe(`0 ${webServer}`);
    }
    // Each question went to the machine's name server, and nothing to the address that was asked.
    expect(new Set(internet.heard.slice(heard).map(({ protocol }) => protocol))).toEqual(new Set(["dns"]));
    await expectUnreachable(online, [
      ["tcp", privateServer, 80],
      ["tcp", nameServer, 80],
      ["udp", nameServer, 5353],
    ]);
  });

  test("is named no address that it could not reach, and none of IPv6", async () => {
    for (const name of ["private.example", "metadata.example", "half-private.example"])
      expect(await lookUp(online.guest, name)).toBe("0");
    const asked = internet.heard.length;
    expect(await lookUp(online.guest, "allowed.example", { type: 28 })).toBe("0");
    expect(await lookUp(online.guest, "53.0.99.10.in-addr.arpa", { type: 12 })).toBe("0");
    expect(internet.heard.slice(asked)).toEqual([]);
  });

  test("is answered at once where it may not go, instead of hanging", async () => {
    const startedAt = performance.now();
    const outcomes = await probe(online, [
      ["tcp", "10.0.0.1", 80],
      ["tcp", metadataServer, 80],
      ["tcp", other.address, 8000],
    ]);
    expect(new Set(Object.values(outcomes))).toEqual(new Set(["failed: ConnectionRefusedError"]));
    expect(performance.now() - startedAt).toBeLessThan(1500);
  });

  test("reaches nothing at all when it has none, and the host still reaches it", async () => {
    const heard = internet.heard.length;
    await expectUnreachable(offline, [
      ["tcp", webServer, 80],
      ["udp", webServer, 5353],
      ["tcp", hostAddress, servicePort],
      ["tcp", other.address, 8000],
      ["tcp", uplinkAddress, servicePort],
    ]);
    // Its questions are refused, at once, and nobody else hears of them.
    for (const server of [GATEWAY_ADDRESS, privateServer, webServer]) {
      for (const over of ["udp", "tcp"] as const)
        expect(await lookUp(offline.guest, "secret.allowed.example", { server, over })).toBe("5");
    }
    expect(internet.heard.slice(heard)).toEqual([]);
    expect(await offline.guest.output("echo reached")).toBe("reached");
  });

  test("is cut off and let out again while it runs", async () => {
    await bed.router.setEgress(online.slot, "none");
    await expectUnreachable(online, [
      ["tcp", webServer, 80],
      ["udp", webServer, 5353],
    ]);
    expect(await lookUp(online.guest, "allowed.example")).toBe("5");
    await bed.router.setEgress(online.slot, "internet");
    expect(Object.values(await probe(online, [["tcp", webServer, 80]]))).toEqual([
      `seen from ${hostAddress}`,
    ]);
  });

  test("has no IPv6", async () => {
    await expectUnreachable(online, [
      ["tcp", "2001:db8::1", 80],
      ["udp", "2001:db8::1", 53],
      ["tcp", "fe80::1", 80],
    ]);
    const { stdout } = await run([
      "ip",
      "-n",
      instanceNames(stateDir).routerNetns,
      "-6",
      "-json",
      "addr",
      "show",
    ]);
    expect(
      (JSON.parse(stdout) as { addr_info: unknown[] }[]).flatMap(
        ({ addr_info: addresses }) => addresses ?? [],
      ),
    ).toEqual([]);
  });

  test("cannot be connected to from outside, even by somebody who routes to it", async () => {
    const knock = (address: string): Promise<unknown> =>
      internet.run(["curl", "-s", "-m", "1", `http://${address}:49983/health`]);
    for (const { address } of [online, offline])
      await expect(knock(address)).rejects.toThrow(/exited with (7|28)/);
    await expect(
      internet.run(["curl", "-s", "-m", "1", `http://${uplinkAddress.replace(/\d+$/, "254")}:80/`]),
    ).rejects.toThrow(/exited with (7|28)/);
  });

  test("sends under no address but its own: forged sources are dropped", async () => {
    // A guest that broke out of its runtime would stand here, in the slot's bare namespace.
    const slot = 4001;
    const { netns } = await bed.router.addSlot(slot, "internet");
    try {
      const send = (source: string, text: string): Promise<unknown> =>
        run([
          "ip",
          "netns",
          "exec",
          netns,
          "python3",
          "-c",
          `import socket,sys
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind((sys.argv[1],0)); s.sendto(sys.argv[2].encode(),("${webServer}",5353))`,
          source,
          text,
        ]);
      for (const address of ["10.200.0.9", other.address, "198.51.100.99"]) {
        await run(["ip", "-n", netns, "addr", "add", `${address}/32`, "dev", "eth0"]);
        await send(address, `forged ${address}`);
      }
      await send("10.200.0.2", "honest");
      const texts = await new Promise<string[]>((resolve) => {
        const look = setInterval(() => {
          const seen = internet.heard.flatMap(({ text }) => (text === undefined ? [] : [text]));
          if (!seen.includes("honest")) return;
          clearInterval(look);
          resolve(seen);
        }, 20);
      });
      expect(texts.filter((text) => text.startsWith("forged"))).toEqual([]);
    } finally {
      await bed.router.removeSlot(slot);
    }
  });

  /** Every IPv4 address of this machine but loopback's. */
  async function hostAddresses(): Promise<string[]> {
    const { stdout } = await run(["ip", "-4", "-json", "addr", "show"]);
    return (JSON.parse(stdout) as { addr_info: { local: string }[] }[])
      .flatMap(({ addr_info: addresses }) => addresses.map(({ local }) => local))
      .filter((address) => !address.startsWith("127."));
  }
});
