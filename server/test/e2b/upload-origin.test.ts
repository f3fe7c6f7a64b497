import { Socket } from "node:net";
import { expect, test } from "vitest";
import { uploadOrigin } from "../../src/e2b/template/upload-origin.ts";

const plain = new Socket();
const tls = Object.assign(new Socket(), { encrypted: true });

test("an upload goes where its client came from, over TLS if it did", () => {
  expect(uploadOrigin({ headers: { host: "a.test:7700" }, socket: plain })).toBe("http://a.test:7700");
  expect(uploadOrigin({ headers: { host: "a.test" }, socket: tls })).toBe("https://a.test");
  const headers = { host: "[::1]:80", "x-forwarded-proto": "https" };
  expect(uploadOrigin({ headers, socket: plain })).toBe("https://[::1]:80");
});

test("a Host that is no host is refused", () => {
  for (const host of ["", "a b", "a.test/other", "user@a.test", "a.test:port", "[::1", "a?b"])
    expect(() => uploadOrigin({ headers: { host }, socket: plain }), host).toThrow(/Host header/);
});
