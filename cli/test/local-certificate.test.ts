import { once } from "node:events";
import { X509Certificate } from "node:crypto";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connect, createServer, type TLSSocket } from "node:tls";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { coveredNames } from "../src/tls/covered-names.ts";
import { isTrusted, issueLeaf, makeAuthority } from "../src/tls/local-authority.ts";
import { ensureLocalCertificate, type LocalCertificatePaths } from "../src/tls/local-certificate.ts";

const DAY_MS = 24 * 3600 * 1000;
const E2B = { TORPOR_E2B_DOMAIN: "e2b.test:7443" };

let root: string;
let paths: LocalCertificatePaths;
let notes: string[];
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), "torpor tls "));
  const tlsDir = join(root, "tls");
  paths = {
    tlsDir,
    authorityFile: join(tlsDir, "ca.pem"),
    authorityKeyFile: join(tlsDir, "ca-key.pem"),
    leafFile: join(tlsDir, "server.pem"),
  };
  notes = [];
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

const ensure = (env: NodeJS.ProcessEnv = E2B, daysAhead = 0): Promise<void> =>
  ensureLocalCertificate({
    paths,
    names: coveredNames(env),
    owner: undefined,
    now: () => Date.now() + daysAhead * DAY_MS,
    onNote: (message) => notes.push(message),
  });
const text = (file: string): string => readFileSync(file, "utf8");
const mode = (file: string): number => statSync(file).mode & 0o777;

/** Whether a client that trusts the authority alone takes the pair for `name`. @throws as the client does */
async function shakeHands(pair: { cert: string; key: string }, ca: string, name: string): Promise<boolean> {
  const server = createServer(pair, (socket) => socket.end()).listen(0, "127.0.0.1");
  server.on("tlsClientError", () => {});
  await once(server, "listening");
  const { port } = server.address() as { port: number };
  const client: TLSSocket = connect({ port, host: "127.0.0.1", ca, servername: name });
  try {
    await once(client, "secureConnect");
    return client.authorized;
  } finally {
    client.destroy();
    server.close();
  }
}

describe("the local certificate", () => {
  it("is taken by clients that trust the authority, for this machine's names and those of the domains", async () => {
    await ensure({
      ...E2B,
      TORPOR_PREVIEW_URL: "https://preview.test:7443",
      TORPOR_TLS_LISTEN: "10.1.2.3:7443",
    });
    const pair = { cert: text(paths.leafFile), key: text(paths.leafFile) };
    for (const name of ["localhost", "e2b.test", "8000-iabc.e2b.test", "8000-sbx.preview.test"])
      expect(await shakeHands(pair, text(paths.authorityFile), name), name).toBe(true);
    await expect(shakeHands(pair, text(paths.authorityFile), "example.com")).rejects.toThrow(/altnames/);
    const leaf = new X509Certificate(pair.cert);
    for (const address of ["127.0.0.1", "::1", "10.1.2.3"]) expect(leaf.checkIP(address)).toBe(address);
  });

  it("keeps the keys to their owners, and the authority's certificate for everybody", async () => {
    await ensure();
    expect([mode(paths.authorityKeyFile), mode(paths.leafFile)]).toEqual([0o600, 0o600]);
    expect([mode(paths.authorityFile), mode(paths.tlsDir)]).toEqual([0o644, 0o755]);
    expect(readdirSync(paths.tlsDir).toSorted()).toEqual(["ca-key.pem", "ca.pem", "server.pem"]);
    expect(text(paths.authorityFile)).not.toContain("PRIVATE");
  });

  it("comes from an authority that can speak for no other name, whoever has its key", async () => {
    const authority = await makeAuthority(coveredNames(E2B), root);
    const foreign = await issueLeaf(authority, { dns: ["bank.example"], addresses: [] }, root);
    expect(await isTrusted(authority, foreign.certificate, root)).toBe(false);
    const pair = { cert: foreign.certificate, key: foreign.key };
    await expect(shakeHands(pair, authority.certificate, "bank.example")).rejects.toThrow(
      /permitted subtree/,
    );
  });

  it("comes from an authority for servers alone, which can speak for no address of mail and no URI", async () => {
    const authority = await makeAuthority(coveredNames(E2B), root);
    expect(new X509Certificate(authority.certificate).keyUsage).toEqual(["1.3.6.1.5.5.7.3.1"]); // serverAuth
    const leafOf = async (name: string): Promise<string> =>
      (await issueLeaf(authority, { dns: ["localhost", name], addresses: [] }, root)).certificate;
    expect(await isTrusted(authority, await leafOf("e2b.test"), root)).toBe(true);
    for (const name of ["URI:spiffe://bank.example/pay", "email:teller@bank.example"]) {
      const leaf = await leafOf(`e2b.test, ${name}`);
      expect(new X509Certificate(leaf).subjectAltName).toContain(name);
      expect(await isTrusted(authority, leaf, root), name).toBe(false);
    }
  });

  it("stays as it is until 30 days are left, and is then made anew by the same authority", async () => {
    await ensure();
    const [authority, leaf] = [text(paths.authorityFile), text(paths.leafFile)];
    await ensure(E2B, 59);
    expect(text(paths.leafFile)).toBe(leaf);
    await ensure(E2B, 61);
    expect(text(paths.leafFile)).not.toBe(leaf);
    expect([text(paths.authorityFile), notes]).toEqual([authority, []]);
  });

  it("is made anew with its authority, and that is said, for another domain and when the authority ends", async () => {
    await ensure();
    const authority = text(paths.authorityFile);
    await ensure({});
    expect(text(paths.authorityFile)).toBe(authority); // it may speak for what is asked, and for more
    await ensure({ TORPOR_E2B_DOMAIN: "other.test" });
    expect(text(paths.authorityFile)).not.toBe(authority);
    expect(notes).toEqual([expect.stringMatching(/is a new authority.*other\.test/)]);
    await ensure({ TORPOR_E2B_DOMAIN: "other.test" }, 3600);
    expect(notes).toHaveLength(2);
  });

  it("is made anew when it is damaged, or half of it", async () => {
    await ensure();
    const leaf = text(paths.leafFile);
    for (const damaged of ["", leaf.slice(0, 700), leaf.slice(leaf.indexOf("-----BEGIN PRIVATE"))]) {
      writeFileSync(paths.leafFile, damaged);
      await ensure();
      expect(
        await shakeHands(
          { cert: text(paths.leafFile), key: text(paths.leafFile) },
          text(paths.authorityFile),
          "localhost",
        ),
      ).toBe(true);
    }
  });

  it("is not made with an authority that is damaged or has lost its key: clients trust that one", async () => {
    await ensure();
    const [certificate, key] = [text(paths.authorityFile), text(paths.authorityKeyFile)];
    for (const [file, content] of [
      [paths.authorityFile, certificate.slice(0, 300)],
      [paths.authorityKeyFile, ""],
      [paths.authorityKeyFile, key.slice(0, 90)],
    ] as const) {
      writeFileSync(file, content);
      await expect(ensure()).rejects.toThrow(/authority is damaged.*remove .*tls/);
      writeFileSync(paths.authorityFile, certificate);
      writeFileSync(paths.authorityKeyFile, key);
    }
    rmSync(paths.authorityKeyFile);
    await expect(ensure()).rejects.toThrow(/is not its key/);
  });

  it("begins again where a killed process stopped, and leaves nothing of that", async () => {
    const half = join(paths.tlsDir, ".making-aBcDeF");
    mkdirSync(half, { recursive: true });
    writeFileSync(join(half, "key"), "half a key");
    writeFileSync(paths.authorityKeyFile, "a key whose certificate was not written");
    await ensure();
    expect(readdirSync(paths.tlsDir).toSorted()).toEqual(["ca-key.pem", "ca.pem", "server.pem"]);
    expect(notes).toEqual([]);
  });

  it("refuses names that are none before they get into a certificate", () => {
    for (const domain of ["e2b.test,DNS:evil.test", "a b", "10.0.0.1", "*.test"])
      expect(() => coveredNames({ TORPOR_E2B_DOMAIN: domain }), domain).toThrow(
        /TORPOR_E2B_DOMAIN names no domain/,
      );
  });
});
