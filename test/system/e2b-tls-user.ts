// A user's program on E2B's published client, run by e2b-tls.test.ts as a process of its own, with the environment that users set.
// Prints what it saw as one line of JSON.
import dns from "node:dns";
import { once } from "node:events";
import { Sandbox } from "e2b";
import { Sandbox as Sandbox245 } from "e2b-2.45";
import { WebSocket } from "ws";
import { ECHO_PROGRAM } from "./echo-program.ts";

// Stands for the wildcard record that a real domain has.
const lookup = dns.lookup as (name: string, options: object, done: (...answer: unknown[]) => void) => void;
(dns as { lookup: unknown }).lookup = (
  name: string,
  options: { all?: boolean },
  done: (...answer: unknown[]) => void,
): void => {
  if (!name.endsWith(".e2b.test")) return lookup(name, options, done);
  const [address, family] = ["127.0.0.1", 4];
  setImmediate(() =>
    options.all === true ? done(null, [{ address, family }]) : done(null, address, family),
  );
};

const client = process.env["USER_OF"] === "2.45.0" ? (Sandbox245 as unknown as typeof Sandbox) : Sandbox;
const sandbox = await client.create("code-interpreter-v1", { timeoutMs: 300_000 });
try {
  const streamed: string[] = [];
  const result = await sandbox.commands.run(
    "for i in 1 2 3; do echo line $i; sleep 0.1; done; echo bad >&2",
    {
      onStdout: (text) => void streamed.push(text),
    },
  );
  await sandbox.files.write("/home/user/server.js", ECHO_PROGRAM);
  const read = await sandbox.files.read("/home/user/server.js");

  let screen = "";
  const terminal = await sandbox.pty.create({
    cols: 80,
    rows: 24,
    onData: (bytes) => void (screen += Buffer.from(bytes).toString()),
  });
  await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode("echo ter''minal; exit\n"));
  await terminal.wait();

  await sandbox.commands.run("node /home/user/server.js", { background: true, timeoutMs: 0 });
  await sandbox.commands.run("until curl -s localhost:8000; do sleep 0.05; done");
  const host = sandbox.getHost(8000);
  const page = await fetch(`https://${host}/path`);
  const socket = new WebSocket(`wss://${host}/`);
  await once(socket, "open");
  socket.send("over TLS");
  const [message] = (await once(socket, "message")) as [Buffer];
  socket.close();

  const signed = await fetch(await sandbox.downloadUrl("server.js"));
  const seen = {
    stdout: result.stdout,
    stderr: result.stderr,
    streamed: streamed.join(""),
    readBack: read === ECHO_PROGRAM,
    screen,
    host,
    page: (await page.json()) as unknown,
    message: String(message),
    signed: (await signed.text()) === ECHO_PROGRAM,
    signedFrom: new URL(signed.url).origin,
    killed: await sandbox.kill(),
    running: await sandbox.isRunning(),
  };
  process.stdout.write(`${JSON.stringify(seen)}\n`);
} catch (error) {
  await sandbox.kill().catch(() => {});
  throw error;
}
