import { createPrivateKey, generateKeyPairSync, randomBytes, X509Certificate } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { isIPv4 } from "node:net";
import { join } from "node:path";
import { ProcessError, run } from "@torpor/base";
import { CodedError } from "@torpor/protocol";
import type { CoveredNames } from "./covered-names.ts";

/** A certificate and its private key, PEM. */
export interface KeyedCertificate {
  certificate: string;
  key: string;
}

const AUTHORITY_DAYS = 3650;
/** Short, since it is renewed by itself; browsers take at most 398 days of any. */
const LEAF_DAYS = 90;

/**
 * A certificate authority that may speak for these names and their subdomains alone (RFC 5280, 4.2.1.10) and for servers
 * alone, so that a client that honours both and trusts it trusts nobody new for anything else.
 *
 * @param workDir where files with keys may lie for a moment, in a folder of their own
 * @throws CodedError when openssl is missing or fails
 */
export async function makeAuthority(names: CoveredNames, workDir: string): Promise<KeyedCertificate> {
  const key = newKey();
  const certificate = await inFolder(workDir, async (path) => {
    writeFileSync(path("key"), key);
    const permitted = [
      ...names.dns.filter((name) => !name.startsWith("*.")).map((name) => `permitted;DNS:${name}`),
      ...names.addresses.map((address) => `permitted;IP:${address}/${isIPv4(address) ? V4_HOST : V6_HOST}`),
      // What is of no permitted kind would be free; none of these can exist (RFC 2606).
      "permitted;email:invalid",
      "permitted;URI:invalid",
    ];
    writeFileSync(
      path("config"),
      [
        "[req]\ndistinguished_name = name\n[name]\n[authority]",
        "basicConstraints = critical, CA:TRUE, pathlen:0",
        "keyUsage = critical, keyCertSign, cRLSign",
        "extendedKeyUsage = serverAuth",
        "subjectKeyIdentifier = hash",
        `nameConstraints = critical, ${permitted.join(", ")}\n`,
      ].join("\n"),
    );
    // Each has a name of its own: clients that trust an older one do not take one for the other.
    const subject = `/O=Torpor/CN=Torpor local authority ${randomBytes(4).toString("hex")}`;
    await openssl(["req", "-x509", "-new", "-sha256"], {
      key: path("key"),
      config: path("config"),
      extensions: "authority",
      days: String(AUTHORITY_DAYS),
      subj: subject,
      out: path("certificate"),
    });
    return readFileSync(path("certificate"), "utf8");
  });
  return { certificate, key };
}

/** A certificate for a server of these names, for 90 days, with a key of its own. @throws as {@link makeAuthority} */
export async function issueLeaf(
  authority: KeyedCertificate,
  names: CoveredNames,
  workDir: string,
): Promise<KeyedCertificate> {
  const key = newKey();
  const certificate = await inFolder(workDir, async (path) => {
    writeFileSync(path("key"), key);
    writeFileSync(path("authority"), authority.certificate);
    writeFileSync(path("authority-key"), authority.key);
    writeFileSync(path("config"), "[req]\ndistinguished_name = name\n[name]\n");
    writeFileSync(
      path("extensions"),
      [
        "basicConstraints = critical, CA:FALSE",
        "keyUsage = critical, digitalSignature",
        "extendedKeyUsage = serverAuth",
        "subjectKeyIdentifier = hash",
        "authorityKeyIdentifier = keyid",
        `subjectAltName = ${[...names.dns.map((name) => `DNS:${name}`), ...names.addresses.map((address) => `IP:${address}`)].join(", ")}\n`,
      ].join("\n"),
    );
    await openssl(["req", "-new", "-sha256"], {
      key: path("key"),
      config: path("config"),
      subj: "/O=Torpor/CN=Torpor server",
      out: path("request"),
    });
    await openssl(["x509", "-req", "-sha256"], {
      in: path("request"),
      CA: path("authority"),
      CAkey: path("authority-key"),
      set_serial: `0x4${randomBytes(15).toString("hex")}`, // positive, of at most 20 bytes, and never given twice
      days: String(LEAF_DAYS),
      extfile: path("extensions"),
      out: path("certificate"),
    });
    return readFileSync(path("certificate"), "utf8");
  });
  return { certificate, key };
}

/** Whether clients that trust the authority take this certificate, its names included. */
export async function isTrusted(
  { certificate }: Pick<KeyedCertificate, "certificate">,
  leaf: string,
  workDir: string,
): Promise<boolean> {
  return inFolder(workDir, async (path) => {
    writeFileSync(path("authority"), certificate);
    writeFileSync(path("leaf"), leaf);
    try {
      const options = { purpose: "sslserver", CAfile: path("authority") };
      await openssl(["verify", "-x509_strict"], options, [path("leaf")]);
      return true;
    } catch (error) {
      if (error instanceof CodedError && error.cause instanceof ProcessError && error.cause.exitCode === 2)
        return false;
      throw error;
    }
  });
}

/** Whether the certificate is readable and the key is its own. */
export function fits({ certificate, key }: KeyedCertificate): boolean {
  try {
    return new X509Certificate(certificate).checkPrivateKey(createPrivateKey(key));
  } catch {
    return false;
  }
}

const V4_HOST = "255.255.255.255";
const V6_HOST = Array.from({ length: 8 }, () => "ffff").join(":");

function newKey(): string {
  const { privateKey } = generateKeyPairSync("ec", { namedCurve: "P-256" });
  return privateKey.export({ type: "pkcs8", format: "pem" }) as string;
}

/** Work in a folder that only this user can enter, and that is gone afterwards. */
async function inFolder<T>(
  workDir: string,
  work: (path: (name: string) => string) => Promise<T>,
): Promise<T> {
  const folder = mkdtempSync(join(workDir, WORK_PREFIX));
  try {
    return await work((name) => join(folder, name));
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** How the folders begin that keys lie in while a certificate is made: what a killed process left of them is to go. */
export const WORK_PREFIX = ".making-";

async function openssl(
  verb: readonly string[],
  options: Readonly<Record<string, string>>,
  files: readonly string[] = [],
): Promise<void> {
  const args = [
    ...verb,
    ...Object.entries(options).flatMap(([name, value]) => [`-${name}`, value]),
    ...files,
  ];
  try {
    await run(["openssl", ...args], { timeoutMs: 30_000 });
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    const hint = why.includes("ENOENT")
      ? " Install the package openssl, or give a certificate by TORPOR_TLS_CERT and TORPOR_TLS_KEY."
      : "";
    throw new CodedError(
      "unsupported",
      `openssl could not make or check the local certificate: ${why}.${hint}`,
      { cause: error },
    );
  }
}
