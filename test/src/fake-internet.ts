import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { run, Scope } from "@torpor/base";
import { processIdentity } from "@torpor/host";

/** Addresses of the fake internet. 198.51.100.0/24 is TEST-NET-2 (RFC 5737): it is nobody's. */
export const FAKE_INTERNET = {
  /** This machine's own address on the link to it: a public address of the host, as a sandbox sees it. */
  hostAddress: "198.51.100.1",
  webServer: "198.51.100.10",
  otherWebServer: "198.51.100.11",
  /** Nobody's: what is sent there is never answered. */
  silent: "198.51.100.13",
  /** A private address that serves too, as a resolver or an office network does. */
  privateServer: "10.99.0.53",
  otherPrivateServer: "192.168.99.54",
  metadataServer: "169.254.169.254",
  /** A private address too, that answers questions for names, by UDP and TCP. */
  nameServer: "10.99.0.55",
  /** What it knows; of any other name it says that there is none. */
  names: {
    "allowed.example": ["198.51.100.10"],
    "deep.sub.allowed.example": ["198.51.100.10"],
    "other.example": ["198.51.100.11"],
    /** Names that lead where no sandbox may go, the last to this machine itself. */
    "private.example": ["10.99.0.53"],
    "metadata.example": ["169.254.169.254"],
    "half-private.example": ["198.51.100.10", "10.99.0.53"],
    "machine.example": ["198.51.100.1"],
  },
  /** Ports that send back what they are sent, until the other side ends. */
  echoPorts: [7, 443],
  tcpPorts: [53, 80, 8080],
  udpPorts: [53, 5353],
} as const;

/** As short a route as serves: a test must not lead away more of the machine's traffic than it needs. */
const PREFIX_LENGTH = 28;

/** In the namespace: echoes who is seen to speak, on every address, and tells of each datagram and connection. */
const SERVICES = `
const net = require("node:net"), dgram = require("node:dgram");
const [tcpPorts, echoPorts, udpPorts, addresses, nameServer, names] = JSON.parse(process.argv[1]);
const say = (heard) => process.stdout.write(JSON.stringify(heard) + "\\n");
for (const address of addresses) for (const port of tcpPorts) net.createServer((socket) => {
  say({ protocol: "tcp", from: socket.remoteAddress, port });
  socket.on("error", () => {});
  socket.once("data", () => {
    const body = "seen from " + socket.remoteAddress;
    socket.end("HTTP/1.0 200 OK\\r\\ncontent-length: " + body.length + "\\r\\n\\r\\n" + body);
  });
}).listen(port, address);
// Bound to each address: an answer must come from where the question went.
for (const address of addresses) for (const port of udpPorts) {
  const socket = dgram.createSocket("udp4");
  socket.on("message", (message, from) => {
    say({ protocol: "udp", from: from.address, port, text: message.toString() });
    socket.send("seen from " + from.address, from.port, from.address);
  });
  socket.bind(port, address);
}
for (const port of echoPorts) net.createServer((socket) => {
  say({ protocol: "tcp", from: socket.remoteAddress, port, to: socket.localAddress });
  socket.on("error", () => {});
  socket.pipe(socket);
}).listen(port, "0.0.0.0");
const answer = (question, over) => {
  const labels = [];
  let at = 12;
  for (; question[at] > 0; at += 1 + question[at]) labels.push(question.toString("latin1", at + 1, at + 1 + question[at]));
  const name = labels.join(".").toLowerCase();
  const type = question.readUInt16BE(at + 1);
  say({ protocol: "dns", from: over, port: 53, text: name, type });
  const found = type === 1 ? (names[name] ?? []) : [];
  const header = Buffer.from([question[0], question[1], 0x81, names[name] === undefined ? 0x83 : 0x80, 0, 1, 0, found.length, 0, 0, 0, 0]);
  const records = found.map((address) => Buffer.from([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, ...address.split(".").map(Number)]));
  return Buffer.concat([header, question.subarray(12, at + 5), ...records]);
};
const dns = dgram.createSocket("udp4");
dns.on("message", (message, from) => dns.send(answer(message, "udp"), from.port, from.address));
dns.bind(53, nameServer);
net.createServer((socket) => {
  socket.on("error", () => {});
  socket.on("data", (data) => {
    const body = answer(data.subarray(2), "tcp");
    socket.write(Buffer.concat([Buffer.from([body.length >> 8, body.length & 255]), body]));
  });
}).listen({ port: 53, host: nameServer });
setTimeout(() => say({ ready: true }), 100);
process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
`;

export interface Heard {
  protocol: "tcp" | "udp" | "dns";
  from: string;
  port: number;
  /** Of a connection to an echo port, the address it came to. */
  to?: string;
  /** Of a datagram what it said, of a question the name. */
  text?: string;
  /** Type of record a question was for. */
  type?: number;
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
    const { hostAddress, webServer, otherWebServer, privateServer, otherPrivateServer, metadataServer } =
      FAKE_INTERNET;
    const { nameServer, names, tcpPorts, echoPorts, udpPorts } = FAKE_INTERNET;
    const ip = (...words: string[]): Promise<unknown> => run(["ip", ...words]);
    await removeLeftovers();
    await ip("netns", "add", netns);
    scope.defer(async () => void (await ip("netns", "del", netns)));
    await ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", netns);
    // By itself: a sandbox of another instance that was started meanwhile keeps the namespace for as long as it lives.
    scope.defer(async () => void (await ip("link", "del", link)));
    await ip("addr", "add", `${hostAddress}/${PREFIX_LENGTH}`, "dev", link);
    await ip("link", "set", link, "up");
    await ip("-n", netns, "addr", "add", `${webServer}/${PREFIX_LENGTH}`, "dev", "eth0");
    await ip("-n", netns, "addr", "add", `${otherWebServer}/${PREFIX_LENGTH}`, "dev", "eth0");
    for (const address of [privateServer, otherPrivateServer, metadataServer, nameServer]) {
      await ip("-n", netns, "addr", "add", `${address}/32`, "dev", "eth0");
      await ip("route", "add", `${address}/32`, "dev", link);
    }
    await ip("-n", netns, "link", "set", "lo", "up");
    await ip("-n", netns, "link", "set", "eth0", "up");
    await ip("-n", netns, "route", "add", "default", "via", hostAddress);
    const internet = new FakeInternet(netns, scope.move());
    await internet.#serve(
      JSON.stringify([
        tcpPorts,
        echoPorts,
        udpPorts,
        [webServer, otherWebServer, privateServer, otherPrivateServer, metadataServer],
        nameServer,
        names,
      ]),
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

/** Namespaces of test processes that were killed; their links and routes go with them. */
async function removeLeftovers(): Promise<void> {
  const { stdout } = await run(["ip", "netns", "list"]);
  for (const line of stdout.split("\n")) {
    const match = /^(tt-internet-(\d+))\b/.exec(line);
    if (match === null || processIdentity(Number(match[2])) !== undefined) continue;
    await run(["ip", "netns", "del", match[1] ?? ""]);
  }
}
