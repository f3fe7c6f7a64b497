/** Run by transfer.test.ts in a process of its own: moves the bytes up and down and tells how memory went. */
import { Torpor } from "@torpor/sdk";
import { SANDBOX_ID } from "./fake-server.ts";

const [url = "", sizeText = "0"] = process.argv.slice(2);
const sizeBytes = Number(sizeText);
const { files } = await new Torpor({ url, apiKey: "tp_test" }).sandboxes.get(SANDBOX_ID);

/** Sampled while the transfers run: what counts is the peak. */
let peakBytes = 0;
const sample = (): void => void (peakBytes = Math.max(peakBytes, process.memoryUsage.rss()));

async function* zeros(totalBytes: number): AsyncGenerator<Uint8Array> {
  const chunk = new Uint8Array(256 * 1024);
  for (let sent = 0; sent < totalBytes; sent += chunk.byteLength) {
    sample();
    yield chunk;
  }
}

// Once small, so that what the runtime loads on first use does not count.
await files.write("/warm", zeros(4 * 1024 * 1024));
await files.readBytes(`/down?${4 * 1024 * 1024}`);
const beforeBytes = process.memoryUsage.rss();
peakBytes = beforeBytes;

const upStart = performance.now();
await files.write("/up", zeros(sizeBytes));
const upMs = performance.now() - upStart;

const downStart = performance.now();
let received = 0;
const reader = (await files.readStream(`/down?${sizeBytes}`)).getReader();
for (;;) {
  const { done, value } = await reader.read();
  if (done) break;
  received += value.byteLength;
  sample();
}
console.log(
  JSON.stringify({
    received,
    growthBytes: peakBytes - beforeBytes,
    upMs,
    downMs: performance.now() - downStart,
  }),
);
