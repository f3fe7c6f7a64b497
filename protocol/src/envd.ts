/**
 * The part of E2B's published envd protocol that Torpor's own routes use: Connect-JSON messages of
 * `process.Process` and `filesystem.Filesystem`, and the envelopes of its streams (one flag byte, a big-endian
 * 32-bit length, JSON). Fields named `torpor` are our extensions; other implementations ignore them.
 */

/** Flag of the last envelope of a Connect stream, whose body is `{}` or `{error}`. */
export const CONNECT_END_FLAG = 0x02;

export interface StartRequest {
  process: { cmd: string; args: string[]; envs: Record<string, string>; cwd?: string };
  pty?: { size: { cols: number; rows: number } };
  tag?: string;
  stdin?: boolean;
  torpor?: {
    /** At-most-once key: a second Start with it attaches instead of running again. */
    execId?: string;
    timeoutMs?: number;
    killGraceMs?: number;
    maxOutputBytes?: number;
    /** Base64; written to standard input, which is then closed. */
    stdin?: string;
    killOnDisconnect?: boolean;
    /** The stream comes in parts, and one that a freeze cuts off can be gone on with; needs `execId`. */
    resumable?: boolean;
    user?: string;
  };
}

export interface ProcessEndExtension {
  outcome: "exited" | "signalled" | "timed_out" | "oom";
  /** Null unless the process exited by itself. */
  exitCode: number | null;
  signal: string | null;
  durationMs: number;
  stdoutBytes: number;
  stderrBytes: number;
  stdoutTruncated: boolean;
  stderrTruncated: boolean;
}

export interface ProcessEvent {
  /** `torpor.from`: bytes of each stream that were before, told to those who connect without a `torpor` of their own. */
  start?: { pid: number; torpor?: { from?: { stdout: number; stderr: number; pty: number } } };
  data?: { stdout?: string; stderr?: string; pty?: string; torpor?: { lostBytes?: number } };
  end?: {
    exitCode?: number;
    exited?: boolean;
    status?: string;
    error?: string;
    torpor?: ProcessEndExtension;
  };
  keepalive?: Record<string, never>;
  /** Last event of a part of a resumable stream: connect again to go on. */
  continue?: Record<string, never>;
}

export interface ConnectError {
  code: string;
  message: string;
}

/** Encodes one envelope. */
export function encodeEnvelope(flags: number, json: unknown): Uint8Array {
  const body = new TextEncoder().encode(JSON.stringify(json));
  const bytes = new Uint8Array(5 + body.length);
  bytes[0] = flags;
  new DataView(bytes.buffer).setUint32(1, body.length);
  bytes.set(body, 5);
  return bytes;
}

/** Largest envelope accepted from a guest, bytes: chunks are at most 32 KiB, base64 and framing included. */
const MAX_ENVELOPE_BYTES = 1024 * 1024;

/**
 * Splits a Connect stream into envelopes. Everything from a guest is untrusted: an oversized length throws.
 * A stream that ends in mid-envelope throws too, since its rest is lost.
 */
export async function* decodeEnvelopes(
  chunks: AsyncIterable<Uint8Array>,
): AsyncGenerator<{ flags: number; json: unknown }> {
  let buffered = new Uint8Array(0);
  const decoder = new TextDecoder();
  for await (const chunk of chunks) {
    if (buffered.length === 0) buffered = new Uint8Array(chunk);
    else {
      const joined = new Uint8Array(buffered.length + chunk.length);
      joined.set(buffered);
      joined.set(chunk, buffered.length);
      buffered = joined;
    }
    let offset = 0;
    while (buffered.length - offset >= 5) {
      const length = new DataView(buffered.buffer, buffered.byteOffset + offset).getUint32(1);
      if (length > MAX_ENVELOPE_BYTES) {
        throw new Error(`guest sent an envelope of ${length} bytes, above the ${MAX_ENVELOPE_BYTES} allowed`);
      }
      if (buffered.length - offset < 5 + length) break;
      const body = buffered.subarray(offset + 5, offset + 5 + length);
      yield { flags: buffered[offset] ?? 0, json: length === 0 ? {} : JSON.parse(decoder.decode(body)) };
      offset += 5 + length;
    }
    buffered = buffered.slice(offset);
  }
  if (buffered.length > 0) throw new Error("guest stream ended in the middle of an envelope");
}
