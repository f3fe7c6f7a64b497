import { X509Certificate } from "node:crypto";
import { chmodSync, mkdirSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { readPrivateFile, writePrivateFile } from "@torpor/base";
import { CodedError } from "@torpor/protocol";
import type { Owner } from "../instance/process-owner.ts";
import type { CoveredNames } from "./covered-names.ts";
import {
  fits,
  isTrusted,
  issueLeaf,
  type KeyedCertificate,
  makeAuthority,
  WORK_PREFIX,
} from "./local-authority.ts";

/** Where the parts of an instance's own certificate lie. */
export interface LocalCertificatePaths {
  /** Folder of the authority: this process's user alone writes there. */
  tlsDir: string;
  /** What clients are to trust; everybody may read it. */
  authorityFile: string;
  /** Key of the authority, 0600: whoever has it can pose as this instance to its clients. */
  authorityKeyFile: string;
  /**
   * Certificate and key of the server in one file, so that they change together; 0600, the server's user's. Not in a folder
   * of that user, who could put a link there for root to write or read through.
   */
  leafFile: string;
}

export interface LocalCertificateOptions {
  paths: LocalCertificatePaths;
  names: CoveredNames;
  /** Who reads the server's certificate and key; undefined for this process's user. */
  owner: Owner | undefined;
  /** Wall clock, Unix milliseconds. */
  now: () => number;
  /** Told when clients have to be given something new. */
  onNote: (message: string) => void;
}

const DAY_MS = 24 * 3600 * 1000;
/** The server's certificate is made anew when less than this is left of its 90 days. */
const RENEW_LEAF_MS = 30 * DAY_MS;
/** The authority is made anew before it ends earlier than what it would issue. */
const RENEW_AUTHORITY_MS = 120 * DAY_MS;

/**
 * Sees to it that the server has a certificate of the instance's own authority that holds for these names and 30 days at
 * least. The authority is made once, and anew only when it may not speak for a name or ends. For the holder of the state
 * directory alone; what a killed one left half-way is made again.
 *
 * @throws CodedError `conflict` when the authority's files are damaged or do not fit: clients trust it, so it is not
 * replaced unasked; `unsupported` when openssl is missing or fails
 */
export async function ensureLocalCertificate(options: LocalCertificateOptions): Promise<void> {
  const { paths, names, owner, now, onNote } = options;
  const { tlsDir, leafFile } = paths;
  mkdirSync(tlsDir, { recursive: true, mode: 0o755 });
  chmodSync(tlsDir, 0o755); // whatever the umask: clients read the authority's certificate
  for (const name of readdirSync(tlsDir))
    if (name.startsWith(WORK_PREFIX)) rmSync(join(tlsDir, name), { recursive: true });
  const existing = readAuthority(paths);
  if (existing !== undefined && lastsFor(existing.certificate, RENEW_AUTHORITY_MS, now)) {
    if (await leafHolds(existing, options)) return;
    const leaf = await issueLeaf(existing, names, tlsDir);
    if (await isTrusted(existing, leaf.certificate, tlsDir)) {
      writePrivateFile(leafFile, leaf.certificate + leaf.key, owner);
      return;
    }
  }
  const authority = await makeAuthority(names, tlsDir);
  const leaf = await issueLeaf(authority, names, tlsDir);
  if (!(await isTrusted(authority, leaf.certificate, tlsDir)))
    throw new CodedError(
      "internal",
      `openssl made a certificate for ${names.dns.join(", ")} that it does not take itself`,
    );
  // The certificate goes first and comes last: without it there is no authority, whatever else a crash leaves.
  rmSync(paths.authorityFile, { force: true });
  writePrivateFile(paths.authorityKeyFile, authority.key);
  writePrivateFile(leafFile, leaf.certificate + leaf.key, owner);
  writePrivateFile(paths.authorityFile, authority.certificate);
  chmodSync(paths.authorityFile, 0o644);
  if (existing !== undefined)
    onNote(
      `${paths.authorityFile} is a new authority, since the one before could not speak for ${names.dns.join(", ")} or was about to end: clients are to be given this one`,
    );
}

/** Looks every 12 hours, so that what runs for months is renewed in time; the server reads the file again by itself. Answers how to end it. */
export function keepLocalCertificate(options: LocalCertificateOptions): () => void {
  const timer = setInterval(() => {
    ensureLocalCertificate(options).catch((error: unknown) =>
      options.onNote(
        `the local certificate could not be renewed: ${error instanceof Error ? error.message : String(error)}`,
      ),
    );
  }, DAY_MS / 2);
  timer.unref();
  return () => clearInterval(timer);
}

/** The authority that is there, or undefined when none was made to its end. */
function readAuthority({
  tlsDir,
  authorityFile,
  authorityKeyFile,
}: LocalCertificatePaths): KeyedCertificate | undefined {
  const certificate = readPrivateFile(authorityFile)?.toString("utf8");
  if (certificate === undefined) return undefined;
  chmodSync(authorityFile, 0o644); // one that a crash left while it was made
  const authority = { certificate, key: readPrivateFile(authorityKeyFile)?.toString("utf8") ?? "" };
  if (fits(authority)) return authority;
  throw new CodedError(
    "conflict",
    `the local certificate authority is damaged: ${authorityFile} cannot be read, or ${authorityKeyFile} is not its key. Put both back as they were, or remove ${tlsDir}: a new one is made then, which clients have to be given`,
  );
}

/** Whether the server's certificate is one that need not be made anew. */
async function leafHolds(
  authority: KeyedCertificate,
  { paths, names, now }: LocalCertificateOptions,
): Promise<boolean> {
  const text = readPrivateFile(paths.leafFile)?.toString("utf8") ?? "";
  if (!fits({ certificate: text, key: text }) || !lastsFor(text, RENEW_LEAF_MS, now)) return false;
  const leaf = new X509Certificate(text);
  const covered = leaf.subjectAltName?.split(", ") ?? [];
  const coversAll =
    names.dns.every((name) => covered.includes(`DNS:${name}`)) &&
    names.addresses.every((address) => leaf.checkIP(address) !== undefined);
  if (!coversAll) return false;
  return isTrusted(authority, text, paths.tlsDir);
}

function lastsFor(certificate: string, forMs: number, now: () => number): boolean {
  return Date.parse(new X509Certificate(certificate).validTo) - now() > forMs;
}
