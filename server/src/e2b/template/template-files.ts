import { createHash } from "node:crypto";
import { createWriteStream } from "node:fs";
import { type FileHandle, mkdir, mkdtemp, open, readdir, rename, rm, stat, utimes } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pipeline, type Readable } from "node:stream";
import { pipeline as piped } from "node:stream/promises";
import { createGunzip } from "node:zlib";
import type { Clock } from "@torpor/base";
import { CodedError, randomText } from "@torpor/protocol";
import type { TenantScope } from "../../auth/tenant-scope.ts";
import type { BuildRecord, BuiltTemplate } from "../../store/template-store.ts";

export interface TemplateFilesOptions {
  /** Private to the server. Default: a temporary one that goes with this object. */
  directory: string | undefined;
  clock: Clock;
  /** Largest archive, bytes. Default 1 GiB. */
  maxFileBytes?: number;
  /** Of all archives of one account, bytes. Default 4 GiB. */
  maxAccountBytes?: number;
}

declare const fromFiles: unique symbol;

/** Leave to upload one archive, as the owner of a template was given it. */
export interface UploadGrant {
  readonly [fromFiles]: true;
  readonly file: string;
  readonly folder: string;
  readonly expiresAt: number;
}

const GIB = 1024 ** 3;
/** An upload has to have begun within this time from when its URL was given out, milliseconds: as long as E2B's clients wait. */
const GRANT_MS = 60 * 60_000;
/** Grants of one server that are kept, the newest. */
const MAX_GRANTS = 10_000;
/** An archive that no build has used for this long is removed, milliseconds. */
const UNUSED_MS = 7 * 24 * 60 * 60_000;
/** One that was used as recently as this makes no room for another, milliseconds. */
const IN_USE_MS = 10 * 60_000;

type Owner = Pick<BuiltTemplate, "account" | "tenant">;

/**
 * Archives that COPY steps of builds unpack, kept by what their client calls them: an unchanged one is not sent again. They
 * are only stored here, and opened inside sandboxes of their owner. One server's: where several share a store, a client's
 * requests have to go to the same one.
 */
export class TemplateFiles {
  readonly #clock: Clock;
  readonly #maxFileBytes: number;
  readonly #maxAccountBytes: number;
  readonly #grants = new Map<string, UploadGrant>();
  /** Uploads under way, by the file that each writes. */
  readonly #uploads = new Map<string, { folder: string; bytes: number }>();
  #directory: Promise<string> | undefined;
  readonly #given: string | undefined;

  constructor({ directory, clock, maxFileBytes = GIB, maxAccountBytes = 4 * GIB }: TemplateFilesOptions) {
    this.#given = directory;
    this.#clock = clock;
    this.#maxFileBytes = maxFileBytes;
    this.#maxAccountBytes = maxAccountBytes;
  }

  /** Whether the archive of that hash is here; then it stays for a while. */
  async has(owner: BuiltTemplate | BuildRecord, hash: string): Promise<boolean> {
    const now = new Date(this.#clock.now());
    try {
      await utimes(await this.#pathOf(owner, hash), now, now);
      return true;
    } catch {
      return false;
    }
  }

  /** A token with which the archive of that hash may be uploaded, by whoever holds it, within an hour. */
  async grant(_scope: TenantScope, template: BuiltTemplate, hash: string): Promise<string> {
    const folder = await this.#folderOf(template);
    const token = randomText(40);
    const grant: Omit<UploadGrant, typeof fromFiles> = {
      folder,
      file: fileName(template, hash),
      expiresAt: this.#clock.now() + GRANT_MS,
    };
    this.#grants.set(token, grant as UploadGrant);
    for (const [oldest] of this.#grants) {
      if (this.#grants.size <= MAX_GRANTS) break;
      this.#grants.delete(oldest);
    }
    return token;
  }

  /** What a token allows. @throws CodedError unauthenticated for one that is not known, or no more */
  claim(token: string, hash: string): UploadGrant {
    const grant = this.#grants.get(token);
    if (grant === undefined || grant.expiresAt < this.#clock.now() || !grant.file.endsWith(hash))
      throw new CodedError(
        "unauthenticated",
        "this upload URL is not valid, or not any more; ask for another with GET /templates/{id}/files/{hash}",
      );
    return grant;
  }

  /** Stores an archive of that many bytes. @throws CodedError payload_too_large; the error of a body that breaks off */
  async write({ folder, file }: UploadGrant, body: Readable, bytes: number): Promise<void> {
    if (bytes > this.#maxFileBytes)
      throw new CodedError(
        "payload_too_large",
        `the archive is ${bytes} bytes where at most ${this.#maxFileBytes} are accepted; copy less, or let a step of the build fetch it`,
      );
    const part = join(folder, `.part-${randomText(20)}`);
    // In the same turn as it is counted, so that of uploads at a time each sees those before it.
    const before = [...this.#uploads.values()].filter((upload) => upload.folder === folder);
    const promised = before.reduce((sum, upload) => sum + upload.bytes, 0);
    this.#uploads.set(part, { folder, bytes });
    try {
      await mkdir(folder, { recursive: true, mode: 0o700 });
      await this.#makeRoom(folder, bytes, promised);
      await piped(body, createWriteStream(part, { flags: "wx", mode: 0o600 }));
      const written = (await stat(part)).size;
      if (written !== bytes)
        throw new CodedError(
          "invalid_request",
          `the archive ended after ${written} of ${bytes} bytes; send it again`,
        );
      await rename(part, join(folder, file));
    } catch (error) {
      await rm(part, { force: true });
      throw error;
    } finally {
      this.#uploads.delete(part);
    }
  }

  /**
   * The tar of that hash, decompressed if it was compressed; undefined when it is not here. To be read at once, or
   * destroyed: it holds the file open.
   */
  async open(build: BuildRecord, hash: string): Promise<Readable | undefined> {
    if (!(await this.has(build, hash))) return undefined;
    const file = await open(await this.#pathOf(build, hash));
    let isCompressed: boolean;
    try {
      isCompressed = await isGzip(file);
    } catch (error) {
      await file.close();
      throw error;
    }
    const stored = file.createReadStream({ start: 0 });
    // What is wrong with the archive is its reader's to tell; without a listener of our own, one who is late would end the server.
    stored.on("error", () => {});
    if (!isCompressed) return stored;
    const tar = createGunzip();
    tar.on("error", () => {});
    pipeline(stored, tar, () => {});
    return tar;
  }

  /** Removes archives that no build has used for a week, and what uploads left that broke off. @returns how many */
  async sweep(): Promise<number> {
    const root = await this.#root();
    let removed = 0;
    for (const account of await readdir(root).catch(() => []))
      for (const { path, usedAt } of await filesOf(join(root, account))) {
        if (usedAt > this.#clock.now() - UNUSED_MS) continue;
        await rm(path, { force: true });
        removed += 1;
      }
    return removed;
  }

  /** Removes the directory if it was a temporary one. */
  async close(): Promise<void> {
    if (this.#given === undefined && this.#directory !== undefined)
      await rm(await this.#directory, { recursive: true, force: true });
  }

  /** Removes what has not been used for the longest until `bytes` more fit, beside what earlier uploads were promised. */
  async #makeRoom(folder: string, bytes: number, promised: number): Promise<void> {
    const files = (await filesOf(folder))
      .filter(({ path }) => !this.#uploads.has(path))
      .sort((one, other) => one.usedAt - other.usedAt);
    let used = files.reduce((sum, file) => sum + file.bytes, promised);
    for (const file of files) {
      if (used + bytes <= this.#maxAccountBytes) return;
      if (file.usedAt > this.#clock.now() - IN_USE_MS) continue;
      await rm(file.path, { force: true });
      used -= file.bytes;
    }
    if (used + bytes > this.#maxAccountBytes)
      throw new CodedError(
        "payload_too_large",
        `this account has ${used} bytes of archives in use, and may have ${this.#maxAccountBytes}; wait until builds have ended`,
      );
  }

  async #pathOf(owner: Owner, hash: string): Promise<string> {
    return join(await this.#folderOf(owner), fileName(owner, hash));
  }

  async #folderOf({ account }: Owner): Promise<string> {
    return join(await this.#root(), digest(account));
  }

  #root(): Promise<string> {
    this.#directory ??=
      this.#given === undefined ? mkdtemp(join(tmpdir(), "torpor-uploads-")) : Promise.resolve(this.#given);
    return this.#directory;
  }
}

/** Names that come from outside are hashed: none of them is ever a path. */
function fileName({ tenant }: Owner, hash: string): string {
  return `${digest(tenant)}-${hash}`;
}

function digest(text: string): string {
  return createHash("sha256").update(text).digest("hex").slice(0, 32);
}

async function filesOf(folder: string): Promise<{ path: string; bytes: number; usedAt: number }[]> {
  const files = [];
  for (const name of await readdir(folder).catch(() => [])) {
    const path = join(folder, name);
    const found = await stat(path).catch(() => undefined); // removed meanwhile
    if (found !== undefined) files.push({ path, bytes: found.size, usedAt: found.mtimeMs });
  }
  return files;
}

async function isGzip(file: FileHandle): Promise<boolean> {
  const { buffer, bytesRead } = await file.read(Buffer.alloc(2), 0, 2, 0);
  return bytesRead === 2 && buffer[0] === 0x1f && buffer[1] === 0x8b;
}
