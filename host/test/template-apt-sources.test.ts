import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import {
  findAptSources,
  formatDeb822,
  parseDeb822,
  parseOneLine,
  readAptSources,
} from "../src/template/index.ts";

let aptDir: string;
beforeEach(async () => {
  aptDir = await mkdtemp(join(tmpdir(), "torpor-apt-"));
  await mkdir(join(aptDir, "sources.list.d"));
});
afterEach(async () => {
  await rm(aptDir, { recursive: true, force: true });
});

const DEBIAN = `# comment: not a field
Types: deb deb-src
URIs: http://archive.test/debian
Suites: bookworm bookworm-updates bookworm-backports
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://archive.test/debian-security
Suites:
 bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
`;

test("release, updates and security are taken; backports, other components and other vendors are not", async () => {
  await writeFile(join(aptDir, "sources.list.d/debian.sources"), DEBIAN);
  await writeFile(
    join(aptDir, "sources.list.d/vendor.list"),
    "deb [arch=amd64 signed-by=/etc/apt/keyrings/vendor.gpg] https://vendor.test/repo bookworm main\n",
  );
  expect(await findAptSources("bookworm", ["main"], { aptDir })).toEqual([
    {
      uris: ["http://archive.test/debian"],
      suites: ["bookworm", "bookworm-updates"],
      components: ["main"],
      signedBy: "/usr/share/keyrings/debian-archive-keyring.gpg",
    },
    {
      uris: ["http://archive.test/debian-security"],
      suites: ["bookworm-security"],
      components: ["main"],
      signedBy: "/usr/share/keyrings/debian-archive-keyring.gpg",
    },
  ]);
});

test("the one-line form is read with options, tabs and trailing comments", () => {
  const text =
    "# deb http://no.test x main\ndeb-src http://no.test bookworm main\n\tdeb\t[ signed-by=/k.gpg arch=amd64 ]  http://a.test/debian/  bookworm\tmain contrib # why\ndeb http://b.test bookworm main\ndeb http://alone.test\n";
  expect(parseOneLine(text)).toEqual([
    {
      uris: ["http://a.test/debian/"],
      suites: ["bookworm"],
      components: ["main", "contrib"],
      signedBy: "/k.gpg",
    },
    { uris: ["http://b.test"], suites: ["bookworm"], components: ["main"], signedBy: undefined },
  ]);
});

test("disabled and source-only stanzas are left out, keys written into the file are kept", () => {
  const key =
    "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n -----END PGP PUBLIC KEY BLOCK-----";
  const parsed = parseDeb822(
    `Types: deb\nURIs: http://off.test\nSuites: bookworm\nComponents: main\nEnabled: no\n\nTypes: deb-src\nURIs: http://src.test\nSuites: bookworm\nComponents: main\n\n\nTYPES: deb\nURIs: http://on.test\nSuites: bookworm\nComponents: main\n${key}\n`,
  );
  expect(parsed).toHaveLength(1);
  expect(parsed[0]?.uris).toEqual(["http://on.test"]);
  expect(parseDeb822(formatDeb822(parsed, { keepCredentials: true }))).toEqual(parsed);
});

test("a machine without the wanted release is told of the option `mirror`, and with it needs no configuration", async () => {
  await writeFile(join(aptDir, "sources.list"), "deb http://other.test/ubuntu noble main\n");
  await expect(findAptSources("bookworm", ["main"], { aptDir })).rejects.toMatchObject({
    code: "unsupported",
    message: expect.stringContaining("`mirror`") as string,
  });
  const [source] = await findAptSources("bookworm", ["main"], { aptDir, mirror: "http://given.test/debian" });
  expect(source).toMatchObject({
    uris: ["http://given.test/debian"],
    suites: ["bookworm", "bookworm-updates"],
  });
});

test("an empty or missing apt folder has no sources", async () => {
  expect(await readAptSources(aptDir)).toEqual([]);
  expect(await readAptSources(join(aptDir, "missing"))).toEqual([]);
});

test("passwords in an address do not reach a template", () => {
  const sources = parseOneLine("deb https://me:secret@archive.test/debian bookworm main\n");
  expect(formatDeb822(sources, { keepCredentials: false })).toContain("URIs: https://archive.test/debian\n");
  expect(formatDeb822(sources, { keepCredentials: false })).not.toContain("secret");
  expect(formatDeb822(sources, { keepCredentials: true })).toContain("secret");
});
