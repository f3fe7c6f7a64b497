import { spawn } from "node:child_process";
import { expect, test } from "vitest";
import { eventually } from "../src/eventually.ts";
import { FAKE_INTERNET, FakeInternet } from "../src/fake-internet.ts";
import { useInstance } from "../src/use-instance.ts";

/** Answers the first datagram for as long as it runs, whoever is there to hear it. */
const PERSISTENT = `
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("${FAKE_INTERNET.webServer}", 9999))
_, asker = s.recvfrom(100)
while True: s.sendto(b"for the first", asker); time.sleep(0.05)
`;
/** Speaks to it from port 4000 if told to, and says what it hears there within two seconds. */
const LISTENER = `python3 -c 'import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("0.0.0.0", 4000)); s.settimeout(2)
if len(sys.argv) > 1: s.sendto(b"hello", ("${FAKE_INTERNET.webServer}", 9999))
try: print(s.recv(100).decode())
except TimeoutError: print("nothing")'`;

const torpor = useInstance({ pool: 0, shells: 0 });

test("what is still sent to a sandbox that has ended does not reach the one that has its place", async () => {
  const internet = await FakeInternet.open();
  const server = spawn("ip", ["netns", "exec", internet.netns, "python3", "-c", PERSISTENT], {
    stdio: "ignore",
  });
  try {
    const { host } = torpor();
    const first = await host.create();
    const heard = await eventually("the first to be answered", async () => {
      const text = await host.output(first.id, `${LISTENER} speak`);
      return text === "nothing" ? undefined : text;
    });
    expect(heard).toBe("for the first");
    await host.end(first.id);
    await torpor().killHost("SIGKILL"); // its successor counts places from one again
    await torpor().startHost();
    const second = await host.create();
    expect(second.incarnations[0]?.address).toBe(first.incarnations[0]?.address);
    expect(await host.output(second.id, LISTENER)).toBe("nothing");
    await host.end(second.id);
  } finally {
    server.kill("SIGKILL");
    await internet.close();
  }
});
