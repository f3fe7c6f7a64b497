import { Sandbox, type SandboxCreateOptions } from "@torpor/sdk";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { eventually } from "../src/eventually.ts";
import { FAKE_INTERNET, FakeInternet } from "../src/fake-internet.ts";
import { lookUp, type LookUp } from "../src/look-up.ts";
import { useInstance } from "../src/use-instance.ts";

const { webServer, otherWebServer, metadataServer, nameServer } = FAKE_INTERNET;

/** Says hello to port 443 of an address as a TLS client that wants `SNI`, and tells what comes back. */
const TLS = `
import os, socket, ssl
incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
context = ssl.create_default_context()
context.check_hostname = False
client = context.wrap_bio(incoming, outgoing, server_hostname=os.environ["SNI"] or None)
try: client.do_handshake()
except ssl.SSLWantReadError: pass
hello = outgoing.read()
try:
    with socket.create_connection((os.environ["ADDRESS"], 443), 10) as s:
        s.sendall(hello)
        answer = s.recv(len(hello), socket.MSG_WAITALL)
        print("echoed" if answer == hello else "alert " + str(answer[6]) if answer[:1] == b"\\x15" else "closed")
except OSError as error:
    print("failed: " + type(error).__name__)
`;

/** Holds connections open, one each to these addresses and ports, and writes down for each what became of it. */
const HOLD = `
import json, os, socket, sys, threading, time
def hold(name, address, port, first):
    path = "/tmp/held-" + name
    with socket.create_connection((address, port), 10) as s:
        s.settimeout(30)
        try:
            s.sendall(first)
            count = 0
            while True:
                if not s.recv(65536): raise OSError("ended")
                count += 1
                open(path, "w").write("alive " + str(count))
                time.sleep(0.1)
                s.sendall(b"x")
        except OSError as error:
            open(path, "w").write("cut")
for name, address, port, first in json.loads(os.environ["HELD"]):
    threading.Thread(target=hold, args=(name, address, port, bytes.fromhex(first))).start()
`;

describe("the network policy of a sandbox", () => {
  const torpor = useInstance({ server: true, env: { TORPOR_RESOLVERS: nameServer } });
  let internet: FakeInternet;
  beforeAll(async () => {
    internet = await FakeInternet.open();
  });
  afterAll(() => internet?.close());

  const connection = (): { url: string; apiKey: string } => ({ url: torpor().url, apiKey: torpor().apiKey });
  const create = (options: SandboxCreateOptions): Promise<Sandbox> =>
    Sandbox.create({ template: "base", memoryMb: 256, ...connection(), ...options });

  async function output(
    sandbox: Sandbox,
    command: string,
    env: Record<string, string> = {},
  ): Promise<string> {
    return (await sandbox.exec(command, { env, timeoutSeconds: 60 })).stdout.trimEnd();
  }
  const ask = (sandbox: Sandbox, name: string, options?: LookUp): Promise<string> =>
    lookUp({ output: (command, { env }) => output(sandbox, command, env) }, name, options);
  /** The status of a GET by plain HTTP, or curl's exit code. */
  const get = (sandbox: Sandbox, url: string, ...more: string[]): Promise<string> =>
    output(
      sandbox,
      `curl -s -m 20 -o /dev/null -w '%{http_code}' ${more.join(" ")} ${url} || echo " exit $?"`,
    );
  const tls = (sandbox: Sandbox, sni: string, address: string): Promise<string> =>
    output(sandbox, `python3 -c '${TLS}'`, { SNI: sni, ADDRESS: address });
  const tcp = (sandbox: Sandbox, address: string, port: number): Promise<string> =>
    output(
      sandbox,
      `python3 -c 'import socket
try: socket.create_connection(("${address}", ${port}), 10).close(); print("connected")
except OSError as error: print(type(error).__name__)'`,
    );

  test("lets an allow list of domains through by the name alone, whatever address it is asked under", async () => {
    await using sandbox = await create({ network: { allow: ["allowed.example", "*.sub.allowed.example"] } });
    expect(sandbox.info.network).toEqual({
      egress: "none",
      allow: ["*.sub.allowed.example", "allowed.example"],
      deny: [],
    });
    expect(await get(sandbox, "http://allowed.example/")).toBe("200");
    expect(await get(sandbox, "http://deep.sub.allowed.example/")).toBe("200");
    expect(await get(sandbox, "http://other.example/")).toMatch(/exit 6/); // not even looked up
    expect(await get(sandbox, `http://${webServer}/`)).toBe("403"); // an address is no name
    expect(await get(sandbox, `http://${webServer}/`, "-H 'Host: other.example'")).toBe("403");
    expect(await tls(sandbox, "allowed.example", webServer)).toBe("echoed");
    expect(await tls(sandbox, "other.example", webServer)).toBe("alert 49");
    expect(await tls(sandbox, "", webServer)).toBe("alert 49");
    // An allowed name to another's address goes to the allowed one's: this is no way there.
    const heard = internet.heard.length;
    expect(await tls(sandbox, "allowed.example", otherWebServer)).toBe("echoed");
    expect(internet.heard.slice(heard)).toContainEqual(expect.objectContaining({ port: 443, to: webServer }));
    expect(internet.heard.slice(heard)).not.toContainEqual(expect.objectContaining({ to: otherWebServer }));
    // Other ports are not the name's, and QUIC cannot be looked at.
    expect(await tcp(sandbox, webServer, 8080)).toBe("ConnectionRefusedError");
    expect(await tcp(sandbox, metadataServer, 80)).toBe("ConnectionRefusedError");
    expect(await ask(sandbox, "allowed.example")).toBe(`0 ${webServer}`);
    const asked = internet.heard.length;
    expect(await ask(sandbox, "secret.other.example", { server: "198.51.100.11" })).toBe("5");
    expect(internet.heard.slice(asked)).toEqual([]);
  });

  test("refuses names that lead where no sandbox may go, allowed or not", async () => {
    const names = ["private.example", "metadata.example", "machine.example"];
    await using sandbox = await create({ network: { allow: names } });
    const heard = internet.heard.length;
    for (const name of names) {
      expect(await get(sandbox, "http://x/", `--connect-to x:80:${webServer}:80 -H 'Host: ${name}'`)).toBe(
        "403",
      );
      expect(await tls(sandbox, name, webServer)).toBe("alert 49");
    }
    expect(internet.heard.slice(heard).filter(({ protocol }) => protocol !== "dns")).toEqual([]);
  });

  test("takes addresses on all ports and UDP, deny before allow, and changes what is under way", async () => {
    await using sandbox = await create({
      network: { allow: ["198.51.100.8/29"], deny: [otherWebServer] },
    });
    expect(await tcp(sandbox, webServer, 8080)).toBe("connected");
    expect(await tcp(sandbox, otherWebServer, 8080)).toBe("ConnectionRefusedError");
    expect(await get(sandbox, `http://${webServer}/`)).toBe("200");
    expect(await tls(sandbox, "", webServer)).toBe("echoed");
    expect(await ask(sandbox, "allowed.example")).toBe("5");

    await sandbox.setNetwork({ egress: "internet", deny: ["*.evil.example", otherWebServer] });
    expect(await tcp(sandbox, webServer, 8080)).toBe("connected");
    expect(await tcp(sandbox, otherWebServer, 80)).toBe("ConnectionRefusedError");
    expect(await get(sandbox, "http://allowed.example/")).toBe("200");
    expect(await get(sandbox, `http://${webServer}/`, "-H 'Host: www.evil.example'")).toBe("403");

    // One connection by the rules, one by the gate.
    const hello = await output(
      sandbox,
      `python3 -c 'import ssl
o = ssl.MemoryBIO(); c = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), o, server_hostname="allowed.example")
try: c.do_handshake()
except ssl.SSLWantReadError: print(o.read().hex())'`,
    );
    const held = [
      ["direct", webServer, 7, "78"],
      ["gate", webServer, 443, hello],
    ];
    await sandbox.exec(`nohup python3 -c '${HOLD}' > /dev/null 2>&1 &`, {
      env: { HELD: JSON.stringify(held) },
    });
    const states = (): Promise<string> => output(sandbox, "cat /tmp/held-direct /tmp/held-gate");
    await eventually("both connections", async () => /^alive \d+alive \d+$/.test(await states()));
    await sandbox.setNetwork("none");
    await eventually("both to be cut", async () => (await states()) === "cutcut");
    expect(await tcp(sandbox, webServer, 8080)).toBe("ConnectionRefusedError");
    expect(await ask(sandbox, "allowed.example")).toBe("5");
    await sandbox.setNetwork("internet");
    expect(await get(sandbox, "http://other.example/")).toBe("200");
  });

  test("carries much, both ways, byte for byte", async () => {
    await using sandbox = await create({ network: { allow: ["allowed.example"] } });
    const through = await output(
      sandbox,
      `python3 -c '
import hashlib, os, socket, ssl, threading
o = ssl.MemoryBIO(); c = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), o, server_hostname="allowed.example")
try: c.do_handshake()
except ssl.SSLWantReadError: pass
hello, body = o.read(), os.urandom(1 << 20) * 16
s = socket.create_connection(("${webServer}", 443), 20)
def send(): s.sendall(hello + body); s.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
back = hashlib.sha256()
while chunk := s.recv(1 << 16): back.update(chunk)
print(back.hexdigest() == hashlib.sha256(hello + body).hexdigest())'`,
    );
    expect(through).toBe("True");
  });

  test("is in force after sleep and wake, in forks, and through the death of the host", async () => {
    await using sandbox = await create({ network: { allow: ["allowed.example"] }, ttlSeconds: 600 });
    await using none = await create({ network: "none", ttlSeconds: 600 });
    const holds = async (one: Sandbox): Promise<void> => {
      expect(await get(one, "http://allowed.example/")).toBe("200");
      expect(await get(one, `http://${otherWebServer}/`)).toBe("403");
      expect(await tcp(one, webServer, 8080)).toBe("ConnectionRefusedError");
      expect(await ask(one, "secret.example")).toBe("5");
    };
    // A program that tries all the time must find no gap, not even in the moment of a wake.
    await none.exec(
      `nohup python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    try: s.sendto(b"out of none", ("${webServer}", 5353))
    except OSError: pass' > /dev/null 2>&1 &`,
    );
    await holds(sandbox);
    const [child] = (await sandbox.fork()).children;
    await Promise.all([sandbox.hibernate(), none.hibernate()]);
    await sandbox.setNetwork({ allow: ["allowed.example", "203.0.113.7"] }); // asleep
    await Promise.all([sandbox.wake(), none.wake()]);
    expect(sandbox.info.network).toMatchObject({ allow: ["203.0.113.7", "allowed.example"] });
    await holds(sandbox);
    if (child === undefined) throw new Error("the fork made no child");
    await holds(child);
    await child.destroy();

    await torpor().killHost();
    // Nobody is there to ask, so nothing gets out: seen from the sandboxes' side once there is a way in again.
    await torpor().startHost();
    await eventually(
      "the server to find the host again",
      async () => (await sandbox.exec("true")).exitCode === 0,
      30_000,
    );
    await holds(sandbox);
    expect(await tcp(none, webServer, 80)).toBe("ConnectionRefusedError");
    expect(await ask(none, "allowed.example")).toBe("5");
    expect(internet.heard.filter(({ text }) => text === "out of none")).toEqual([]);
  });
});
