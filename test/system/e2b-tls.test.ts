import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { run } from "@torpor/base";
import { coveredNames, ensureLocalCertificate, instancePaths } from "@torpor/cli";
import { afterAll, describe, expect, test } from "vitest";
import { e2bOptions, useInstance } from "../src/index.ts";

const PROGRAM = fileURLToPath(new URL("./e2b-tls-user.ts", import.meta.url));

/** A port that is free now: the domain that clients are told names it before the server listens. */
async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as { port: number };
  server.close();
  return port;
}

const port = await freePort();
const domain = `e2b.test:${port}`;
const directory = mkdtempSync(join(tmpdir(), "torpor-e2b-tls-"));
const paths = { ...instancePaths(directory), leafFile: join(directory, "leaf.pem") };
const env = { TORPOR_E2B_DOMAIN: domain, TORPOR_TLS_LISTEN: `127.0.0.1:${port}` };
await ensureLocalCertificate({
  paths,
  names: coveredNames(env),
  owner: undefined,
  now: Date.now,
  onNote: () => {},
});

describe("E2B's clients over TLS, with the certificate that 'up --tls' makes", () => {
  const torpor = useInstance({
    server: true,
    env: { ...env, TORPOR_TLS_CERT: paths.leafFile, TORPOR_TLS_KEY: paths.leafFile },
  });
  afterAll(() => rmSync(directory, { recursive: true, force: true }));

  async function use(version: string, settings: Record<string, string>): Promise<Record<string, unknown>> {
    const { stdout } = await run([process.execPath, "--conditions=source", "--import", "tsx", PROGRAM], {
      env: {
        PATH: process.env["PATH"],
        USER_OF: version,
        E2B_API_KEY: e2bOptions(torpor()).apiKey,
        E2B_API_URL: `https://localhost:${port}`,
        ...settings,
      },
      timeoutMs: 90_000,
    });
    return JSON.parse(stdout) as Record<string, unknown>;
  }

  test.each([
    {
      version: "2.51.0",
      through: "the domain's hosts",
      settings: {},
      signedFrom: /^https:\/\/49983-[a-z0-9]+\.e2b\.test:/,
    },
    {
      version: "2.45.0",
      through: "one address",
      settings: { E2B_SANDBOX_URL: `https://localhost:${port}` },
      signedFrom: /^https:\/\/localhost:/,
    },
  ])(
    "work through $through: commands, files, terminals, ports, signed URLs ($version)",
    async ({ version, settings, signedFrom }) => {
      const seen = await use(version, { NODE_EXTRA_CA_CERTS: paths.authorityFile, ...settings });
      const lines = "line 1\nline 2\nline 3\n";
      expect(seen).toMatchObject({
        stdout: lines,
        streamed: lines,
        stderr: "bad\n",
        readBack: true,
        screen: expect.stringContaining("terminal\r\n") as string,
        host: expect.stringMatching(
          new RegExp(`^8000-[a-z0-9]+\\.${domain.replaceAll(".", "\\.")}$`),
        ) as string,
        page: { url: "/path", headers: { "x-forwarded-proto": "https", host: seen["host"] } },
        message: "over TLS",
        signed: true,
        signedFrom: expect.stringMatching(signedFrom) as string,
        killed: true,
        running: false,
      });
    },
  );

  test("refuse a server whose authority they were not given", async () => {
    await expect(use("2.51.0", {})).rejects.toThrow(
      /unable to verify the first certificate|UNABLE_TO_VERIFY/,
    );
  });
});
