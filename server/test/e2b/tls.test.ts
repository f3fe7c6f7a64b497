import { execFileSync } from "node:child_process";
import { X509Certificate } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer, type IncomingMessage } from "node:http";
import { request } from "node:https";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connect } from "node:tls";
import { afterAll, beforeAll, expect, test } from "vitest";
import { WebSocket } from "ws";
import { createLog, FakeClock, silentLog, systemClock } from "@torpor/base";
import { FrontDoor } from "../../src/http/front-door.ts";
import { TlsFront } from "../../src/http/tls-front.ts";
import { World } from "../world.ts";

const DOMAIN = "e2b.test";

let world: World;
let cert: Buffer;

function makePair(): { cert: Buffer; key: Buffer } {
  const directory = mkdtempSync(join(tmpdir(), "torpor-tls-"));
  try {
    const [keyFile, certFile] = [join(directory, "key.pem"), join(directory, "cert.pem")];
    const subject = ["-subj", `/CN=${DOMAIN}`, "-addext", `subjectAltName=DNS:${DOMAIN},DNS:*.${DOMAIN}`];
    const made = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", keyFile, "-out", certFile];
    execFileSync("openssl", ["req", "-x509", ...made, ...subject], { stdio: "pipe" });
    return { cert: readFileSync(certFile), key: readFileSync(keyFile) };
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

beforeAll(async () => {
  const pair = makePair();
  cert = pair.cert;
  const listen = { host: "127.0.0.1", port: 0 };
  const door = await FrontDoor.open({ listen, tls: { listen, ...pair }, clock: systemClock, log: silentLog });
  world = await World.start({ e2bDomain: DOMAIN, door });
});
afterAll(async () => {
  await world[Symbol.asyncDispose]();
});

async function ask(host: string, path: string): Promise<{ status: number; text: string }> {
  const outgoing = request({
    host: "127.0.0.1",
    port: world.server.tlsPort,
    servername: host,
    ca: cert,
    path,
    headers: { host },
    agent: false,
  });
  outgoing.end();
  const [answer] = (await once(outgoing, "response")) as [IncomingMessage];
  let text = "";
  for await (const chunk of answer as AsyncIterable<Buffer>) text += chunk.toString();
  return { status: answer.statusCode ?? 0, text };
}

test("the API is served over TLS as it is without", async () => {
  expect((await ask(DOMAIN, "/healthz")).status).toBe(200);
  expect((await ask(DOMAIN, "/v1/sandboxes")).status).toBe(401);
});

test("ports of a sandbox have hosts of their own over TLS, for upgrades too, and the program is told so", async () => {
  world.host.programs.set(18_431, {
    answer: (_path, incoming, response) => void response.end(JSON.stringify(incoming.headers)),
  });
  const made = await world.call("POST", "/v2/sandboxes", { json: { templateID: "base" } });
  expect(made.body).toMatchObject({ domain: DOMAIN });
  const host = `18431-${String(made.body["sandboxID"])}.${DOMAIN}`;
  const { status, text } = await ask(host, "/");
  expect(status).toBe(200);
  expect(JSON.parse(text)).toMatchObject({ "x-forwarded-proto": "https", "x-forwarded-host": host });
  const options = { headers: { host }, servername: host, ca: cert };
  const socket = new WebSocket(`wss://127.0.0.1:${world.server.tlsPort}/`, options);
  const [, refusal] = (await once(socket, "unexpected-response")) as [unknown, IncomingMessage];
  expect(refusal.statusCode).toBe(426); // this program speaks none: that it was asked is what counts
});

test("what speaks no TLS there is hung up on", async () => {
  await expect(fetch(`http://127.0.0.1:${world.server.tlsPort}/healthz`)).rejects.toThrow();
});

test("a certificate that is renewed is in use within an hour, and one that is half renewed is not", async () => {
  const [first, second] = [makePair(), makePair()];
  let onDisk: () => { cert: Buffer; key: Buffer } = () => first;
  const clock = new FakeClock();
  const server = createServer((_incoming, outgoing) => void outgoing.end());
  const listen = { host: "127.0.0.1", port: 0 };
  const log = createLog({ name: "test", level: "silent" });
  const front = await TlsFront.open(server, { listen, ...first, reread: () => onDisk() }, clock, log);
  const shown = async (): Promise<string> => {
    const socket = connect({
      port: front.port,
      host: "127.0.0.1",
      servername: DOMAIN,
      rejectUnauthorized: false,
    });
    await once(socket, "secureConnect");
    const { raw } = socket.getPeerCertificate();
    socket.destroy();
    return new X509Certificate(raw).toString();
  };
  try {
    for (const half of [
      () => ({ cert: second.cert, key: first.key }),
      () => {
        throw new Error("EACCES");
      },
    ]) {
      onDisk = half;
      clock.advance(3_600_000);
      expect(await shown()).toBe(String(first.cert));
    }
    onDisk = () => second;
    clock.advance(3_600_000);
    expect(await shown()).toBe(String(second.cert));
  } finally {
    await front.close();
  }
});
