import { z } from "zod";

/** Sandbox ids appear in host names, so they carry no hyphen. 26 base-32 characters hold 130 bits. */
export const SANDBOX_ID_PATTERN = /^[a-z0-9]{20,64}$/;

const ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789";

/** A new random sandbox id: `s` and 25 characters of a 32-letter alphabet (125 bits). Never reused. */
export function newSandboxId(): string {
  return `s${randomText(25)}`;
}

/** `length` random characters, 5 bits each, from the platform's cryptographic generator. */
export function randomText(length: number): string {
  const bytes = crypto.getRandomValues(new Uint8Array(length));
  let text = "";
  for (const byte of bytes) text += ALPHABET[byte & 31];
  return text;
}

export const snapshotIdSchema = z
  .string()
  .regex(/^snp[a-z0-9]{20,60}$/, "must be a snapshot id: `snp` and letters and digits");

/** A new random snapshot id. */
export function newSnapshotId(): string {
  return `snp${randomText(23)}`;
}

export const sandboxIdSchema = z.string().regex(SANDBOX_ID_PATTERN);

/** Template names: lower-case words, digits, `-`, `_` and `.`, at most 64 characters. */
export const templateNameSchema = z
  .string()
  .min(1)
  .max(64)
  .regex(
    /^[a-z0-9][a-z0-9._-]*$/,
    "must be lower-case letters, digits, '.', '_' or '-', starting with a letter or digit",
  );

/** Tenant names are the caller's own identifiers: 1 to 128 characters of letters, digits and `._:@-`. */
export const tenantSchema = z
  .string()
  .min(1)
  .max(128)
  .regex(
    /^[A-Za-z0-9][A-Za-z0-9._:@-]*$/,
    "must be letters, digits, '.', '_', ':', '@' or '-', starting with a letter or digit",
  );
