/** Bytes of standard base64 text. Node and Bun do it natively about 10 times faster than `atob`. */
export function decodeBase64(text: string): Uint8Array<ArrayBuffer> {
  if (typeof globalThis.Buffer === "function") {
    const bytes = globalThis.Buffer.from(text, "base64");
    return new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let index = 0; index < binary.length; index++) bytes[index] = binary.charCodeAt(index);
  return bytes;
}
