import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { run, Scope } from "@torpor/base";

/** Addresses of the fake internet. 198.51.100.0/24 is TEST-NET-2 (RFC 5737): it is nobody's. */
export const FAKE_INTERNET = {
  /** This machine's own address on the link to it: a public address of the host, as a sandbox sees it. */
  hostAddress: "198.51.100.1",
  webServer: "198.51.100.10",
  /** A private address that serves too, as a resolver or an office network does. */
  privateServer: "10.99.0.53",
  otherPrivateServer: "192.168.99.54",
  metadataServer: "169.254.169.254",
  tcpPorts: [53, 80, 8080],
  udpPorts: [53, 5353],
} as const;

/** As short a route as serves: a test must not lead away more of the machine's traffic than it needs. */
const PREFIX_LENGTH = 28;

/** In the namespace: echoes who is seen to speak, on every address, and tells of each datagram and connection. */
const SERVICES = `
const net = require("node:net"), dgram = require("node:dgram");
const [tcpPorts, udpPorts, addresses] = JSON.parse(process.argv[1]);
const say = (heard) => process.stdout.write(JSON.stringify(heard) + "\\n");
for (const port of tcpPorts) net.createServer((socket) => {
  say({ protocol: "tcp", from: socket.remoteAddress, port });
  socket.on("error", () => {});
  socket.once("data", () => {
    const body = "seen from " + socket.remoteAddress;
    socket.end("HTTP/1.0 200 OK\\r\\ncontent-length: " + body.length + "\\r\\n\\r\\n" + body);
  });
}).listen(port, "0.0.0.0");
// Bound to each address: an answer must come from where the question went.
for (const address of addresses) for (const port of udpPorts) {
  const socket = dgram.createSocket("udp4");
  socket.on("message", (message, from) => {
    say({ protocol: "udp", from: from.address, port, text: message.toString() });
    socket.send("seen from " + from.address, from.port, from.address);
  });
  socket.bind(port, address);
}
setTimeout(() => say({ ready: true }), 100);
process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
`;

export interface Heard {
  protocol: "tcp" | "udp";
  from: string;
  port: number;
  text?: string;
}

/** A network namespace that plays the internet: the only outside address a test may send to. */
export class FakeInternet {
  readonly netns: string;
  /** Everything that arrived there. */
  readonly heard: Heard[] = [];
  readonly #scope: Scope;

  private constructor(netns: string, scope: Scope) {
    this.netns = netns;
    this.#scope = scope;
  }

  static async open(): Promise<FakeInternet> {
    await using scope = new Scope();
    const netns = `tt-internet-${process.pid}`;
    const link = `tti${process.pid}`;
    const { hostAddress, webServer, privateServer, otherPrivateServer, metadataServer, tcpPorts, udpPorts } =
      FAKE_INTERNET;
    const ip = (...words: string[]): Promise<unknown> => run(["ip", ...words]);
    await ip("netns", "add", netns);
    scope.defer(async () => void (await ip("netns", "del", netns)));
    await ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", netns);
    await ip("addr", "add", `${hostAddress}/${PREFIX_LENGTH}`, "dev", link);
    await ip("link", "set", link, "up");
    await ip("-n", netns, "addr", "add", `${webServer}/${PREFIX_LENGTH}`, "dev", "eth0");
    for (const address of [privateServer, otherPrivateServer, metadataServer]) {
      await ip("-n", netns, "addr", "add", `${address}/32`, "dev", "eth0");
      await ip("route", "add", `${address}/32`, "dev", link);
    }
    await ip("-n", netns, "link", "set", "lo", "up");
    await ip("-n", netns, "link", "set", "eth0", "up");
    await ip("-n", netns, "route", "add", "default", "via", hostAddress);
    const internet = new FakeInternet(netns, scope.move());
    await internet.#serve(
      JSON.stringify([tcpPorts, udpPorts, [webServer, privateServer, otherPrivateServer, metadataServer]]),
    );
    return internet;
  }

  async #serve(ports: string): Promise<void> {
    const child = spawn("ip", ["netns", "exec", this.netns, process.execPath, "-e", SERVICES, ports], {
      stdio: ["pipe", "pipe", "inherit"],
    });
    const ended = new Promise<void>((resolve) => child.once("exit", () => resolve()));
    this.#scope.defer(async () => {
      child.kill("SIGKILL");
      await ended;
    });
    await new Promise<void>((resolve, reject) => {
      void ended.then(() => reject(new Error("the fake internet's services ended")));
      createInterface({ input: child.stdout }).on("line", (line) => {
        const heard = JSON.parse(line) as Heard | { ready: true };
        if ("ready" in heard) resolve();
        else this.heard.push(heard);
      });
    });
  }

  /** Runs a program there. */
  run(argv: readonly string[]): Promise<{ stdout: string }> {
    return run(["ip", "netns", "exec", this.netns, ...argv]);
  }

  close(): Promise<void> {
    return this.#scope.close();
  }
}
