import { existsSync, readFileSync, realpathSync } from "node:fs";
import { basename, delimiter, join } from "node:path";
import { run } from "@torpor/base";
import type { Sandbox } from "@torpor/sdk";

/** Where it is put inside. */
const FOLDER = "/opt/redis";
/** The server and the checker are one program, which goes by the name it is called by: redis-tools has the second only. */
const NAMES = ["redis-server", "redis-check-rdb"];

/**
 * Puts this machine's Redis and all the libraries it needs into a sandbox, since nothing can be fetched there in a test.
 *
 * @returns the command that starts it. @throws Error when this machine has none
 */
export async function installRedis(sandbox: Sandbox): Promise<string> {
  const program = (process.env.PATH ?? "")
    .split(delimiter)
    .flatMap((directory) => NAMES.map((name) => join(directory, name)))
    .find(existsSync);
  if (program === undefined)
    throw new Error(
      "there is no redis-server on this machine: bin/test installs it, as the package redis-tools",
    );
  const { stdout } = await run(["ldd", program]);
  const libraries = [...stdout.matchAll(/(\/\S+) \(0x/g)].map((match) => match[1] ?? "");
  const loader = libraries.find((path) => basename(path).startsWith("ld-linux"));
  if (loader === undefined) throw new Error(`${program} names no loader: ${stdout}`);
  await sandbox.files.write(`${FOLDER}/redis-server`, readFileSync(realpathSync(program)), { user: "root" });
  for (const path of libraries)
    await sandbox.files.write(`${FOLDER}/${basename(path)}`, readFileSync(path), { user: "root" });
  await sandbox.exec(`chmod 755 ${FOLDER}/*`, { user: "root", check: true });
  // With its own loader and libraries: the sandbox's distribution may be another.
  return `${FOLDER}/${basename(loader)} --argv0 redis-server --library-path ${FOLDER} ${FOLDER}/redis-server`;
}

/**
 * A client that counts up on one connection and says how it fares in a file; it ends when anything is not as expected.
 * Its answers tell whether server and connection are still the same.
 */
export const REDIS_CLIENT = `
import json, os, socket, time
s = socket.create_connection(("127.0.0.1", 6379))
f = s.makefile("rb")
def call(*words):
    s.sendall(b"*%d\\r\\n" % len(words) + b"".join(b"$%d\\r\\n%s\\r\\n" % (len(w), w.encode()) for w in words))
    line = f.readline().rstrip()
    if line[:1] == b":": return int(line[1:])
    if line[:1] == b"$": return f.read(int(line[1:]) + 2)[:-2].decode()
    return line.decode()
seen = {"count": 0, "failed": None}
while seen["failed"] is None:
    try:
        n = call("INCR", "n")
        if n != seen["count"] + 1: raise RuntimeError(f"{n} after {seen['count']}")
        server = [l for l in call("INFO", "server").splitlines() if l.startswith("process_id")][0]
        seen = {"count": n, "failed": None, "connection": call("CLIENT", "ID"), "server": server}
    except Exception as error:
        seen["failed"] = repr(error)
    with open("/workspace/redis.new", "w") as out: json.dump(seen, out)
    os.replace("/workspace/redis.new", "/workspace/redis.json")
    time.sleep(0.02)
`;

export interface RedisClientState {
  count: number;
  failed: string | null;
  /** The server's number of the connection. */
  connection: number;
  /** Its process id, as it says. */
  server: string;
}
