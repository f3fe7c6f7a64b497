import { createHash } from "node:crypto";
import { expect, test } from "vitest";
import {
  isExpired,
  isSignature,
  isSignedWith,
  signedPath,
  signedUrl,
} from "../../src/e2b/ingress/signed-url.ts";

const TOKEN = "the sandbox's token";

function signature(...parts: string[]): string {
  return `v1_${createHash("sha256").update(parts.join(":")).digest("base64").replace(/=+$/, "")}`;
}

const GOOD = `username=user&signature=${encodeURIComponent(signature("hello.txt", "read", "user", TOKEN))}`;

/** What the agent is asked for, of a request that is let in. */
function passed(url: string, token = TOKEN): string | undefined {
  const signed = signedUrl("GET", url);
  return signed === undefined || !isSignature(signed) || !isSignedWith(signed, token)
    ? undefined
    : signedPath(signed);
}

test("what was verified is passed on, and nothing else of the URL", () => {
  const plain = passed(`/files?path=hello.txt&${GOOD}`);
  expect(plain).toBe(`/files?path=hello.txt&${GOOD}`);
  expect(passed(`/files??path=hello.txt&${GOOD}`)).toBe(plain);
  expect(passed(`/files?path=hello.txt&${GOOD}&other=/etc/shadow;path=/etc/shadow`)).toBe(plain);
  expect(passed(`/files?path=hello%2Etxt&${GOOD}&%70%61th%zz=/etc/shadow#path=/etc/shadow`)).toBe(plain);
});

test("a URL that names a signed value twice is not a signed one, however it is written", () => {
  for (const url of [
    `/files??path=hello.txt&path=/etc/shadow&${GOOD}`,
    `/files?path=hello.txt&path=/etc/shadow&${GOOD}`,
    `/files?path=hello.txt&p%61th=/etc/shadow&${GOOD}`,
    `/files?path=hello.txt&${GOOD}&username=root`,
    `/files?path=hello.txt&${GOOD}&signature=v1_other`,
  ])
    expect(signedUrl("GET", url), url).toBeUndefined();
});

test("values that the agent would read otherwise reach it as they were verified", () => {
  const odd = "a;b %?&path=/etc/shadow";
  const query = new URLSearchParams({ path: odd, signature: signature(odd, "read", "", TOKEN) });
  expect(passed(`/files?${query}`)).toBe(`/files?${query}`);
  const broken = "100%;path=/etc/shadow";
  const signed = encodeURIComponent(signature(broken, "read", "", TOKEN));
  const path = passed(`/files?path=${broken}&signature=${signed}`);
  expect(path).toBe(`/files?path=100%25%3Bpath%3D%2Fetc%2Fshadow&signature=${signed}`);
});

test("another's token, another form and another time are none", () => {
  expect(passed(`/files?path=hello.txt&${GOOD}`, "another")).toBeUndefined();
  expect(passed("/files?path=hello.txt&signature=v1_short")).toBeUndefined();
  const signed = signedUrl("GET", "/files?path=a&signature=v1_x&signature_expiration=100");
  expect(signed !== undefined && isExpired(signed, 101_000)).toBe(true);
  expect(signed !== undefined && isExpired(signed, 100_999)).toBe(false);
});
