import { readFile, readdir } from "node:fs/promises";
import { basename, join } from "node:path";
import { CodedError } from "@torpor/protocol";

/** One package archive: a stanza of a deb822 `.sources` file or one line of a `.list` file. */
export interface AptSource {
  uris: string[];
  suites: string[];
  components: string[];
  /** Path of a keyring, or key text; undefined when the entry names none. */
  signedBy: string | undefined;
}

export interface AptSourcesOptions {
  /** apt's folder; default `/etc/apt`. */
  aptDir?: string;
  /** Address of a Debian archive to use in place of the machine's own configuration. */
  mirror?: string;
}

/** The keyring that Debian's archive is signed with, where the package of that name puts it. */
export const DEBIAN_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg";

/**
 * The archives a template of `suite` is built from: the machine's own configured ones for that suite, its updates
 * and its security fixes. Backports and third parties are left out.
 *
 * @throws CodedError `unsupported` when the machine is configured for no archive of that suite
 */
export async function findAptSources(
  suite: string,
  components: readonly string[],
  options: AptSourcesOptions = {},
): Promise<AptSource[]> {
  if (options.mirror !== undefined) {
    return [
      {
        uris: [options.mirror],
        suites: [suite, `${suite}-updates`],
        components: [...components],
        signedBy: DEBIAN_KEYRING,
      },
    ];
  }
  const aptDir = options.aptDir ?? "/etc/apt";
  const wanted = new Set([suite, `${suite}-updates`, `${suite}-security`, `${suite}/updates`]);
  const found = (await readAptSources(aptDir))
    .map((source) => ({
      ...source,
      suites: source.suites.filter((name) => wanted.has(name)),
      components: source.components.filter((name) => components.includes(name)),
    }))
    .filter((source) => source.suites.length > 0 && source.components.length > 0);
  // Other vendors also call their suites after Debian's releases; Debian's own are told by their key.
  const debian = found.filter(
    (source) => source.signedBy === undefined || /debian-archive/.test(basename(source.signedBy)),
  );
  const chosen = debian.length > 0 ? debian : found;
  if (!chosen.some((source) => source.suites.includes(suite))) {
    throw new CodedError(
      "unsupported",
      `No package archive for Debian ${suite} is configured in ${aptDir} (looked at sources.list and sources.list.d/). On a machine that is not Debian ${suite}, give the address of a Debian archive with the option \`mirror\` and install the package debian-archive-keyring.`,
      { details: { aptDir, suite } },
    );
  }
  return chosen;
}

/** Every enabled binary archive of a machine, in apt's own order. */
export async function readAptSources(aptDir: string): Promise<AptSource[]> {
  const sources = parseOneLine(await readIfThere(join(aptDir, "sources.list")));
  const folder = join(aptDir, "sources.list.d");
  for (const name of (await readdirIfThere(folder)).sort()) {
    if (name.endsWith(".list")) sources.push(...parseOneLine(await readIfThere(join(folder, name))));
    if (name.endsWith(".sources")) sources.push(...parseDeb822(await readIfThere(join(folder, name))));
  }
  return sources;
}

/** Reads the `deb [options] uri suite component...` form. Lines of other types and comments are left out. */
export function parseOneLine(text: string): AptSource[] {
  const sources: AptSource[] = [];
  for (const line of text.split("\n")) {
    const match = /^\s*deb\s+(?:\[([^\]]*)\]\s+)?([^#]+)/.exec(line);
    if (match === null) continue;
    const [uri, suite, ...components] = (match[2] ?? "").trim().split(/\s+/);
    if (uri === undefined || suite === undefined) continue;
    const signedBy = /(?:^|\s)signed-by=(\S+)/i.exec(match[1] ?? "")?.[1];
    sources.push({ uris: [uri], suites: [suite], components, signedBy });
  }
  return sources;
}

/** Reads the deb822 form (`Types:`, `URIs:`, `Suites:`, ... in stanzas), folded values included. */
export function parseDeb822(text: string): AptSource[] {
  const sources: AptSource[] = [];
  const withoutComments = text
    .split("\n")
    .filter((line) => !line.startsWith("#"))
    .join("\n");
  for (const stanza of withoutComments.split(/\n\s*\n/)) {
    const fields = new Map<string, string>();
    let key: string | undefined;
    for (const line of stanza.split("\n")) {
      const start = /^([A-Za-z-]+)\s*:(.*)$/.exec(line);
      if (start !== null) {
        key = (start[1] ?? "").toLowerCase();
        fields.set(key, (start[2] ?? "").trim());
      } else if (key !== undefined && /^\s/.test(line)) {
        fields.set(key, `${fields.get(key) ?? ""}\n${line.trimEnd()}`);
      }
    }
    const words = (name: string): string[] =>
      (fields.get(name) ?? "").split(/\s+/).filter((word) => word !== "");
    if (
      !words("types").includes("deb") ||
      /^(no|false|0|off|without|disable)$/i.test(fields.get("enabled") ?? "yes")
    )
      continue;
    const signedBy = fields.get("signed-by");
    sources.push({
      uris: words("uris"),
      suites: words("suites"),
      components: words("components"),
      signedBy: signedBy === "" ? undefined : signedBy,
    });
  }
  return sources;
}

/** Writes sources in deb822 form. Credentials inside an address are left out when the text goes into a template. */
export function formatDeb822(sources: readonly AptSource[], options: { keepCredentials: boolean }): string {
  return sources
    .map((source) => {
      const uris = options.keepCredentials ? source.uris : source.uris.map(withoutCredentials);
      const lines = [
        "Types: deb",
        `URIs: ${uris.join(" ")}`,
        `Suites: ${source.suites.join(" ")}`,
        `Components: ${source.components.join(" ")}`,
      ];
      if (source.signedBy !== undefined) lines.push(`Signed-By: ${source.signedBy}`);
      return `${lines.join("\n")}\n`;
    })
    .join("\n");
}

function withoutCredentials(uri: string): string {
  return uri.replace(/^([a-z+]+:\/\/)[^/@]*@/i, "$1");
}

async function readIfThere(path: string): Promise<string> {
  try {
    return await readFile(path, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return "";
    throw error;
  }
}

async function readdirIfThere(path: string): Promise<string[]> {
  try {
    return await readdir(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return [];
    throw error;
  }
}
