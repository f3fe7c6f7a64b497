import { spawn, spawnSync } from "node:child_process";
import { chownSync, existsSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Client } from "pg";

/** Nobody, as every Linux has it: PostgreSQL refuses to run as root. */
const UNPRIVILEGED_ID = 65_534;

/** Where the server's programs are, newest version first. @throws Error that says what to install. */
function binDirectory(): string {
  const root = "/usr/lib/postgresql";
  const versions = existsSync(root) ? readdirSync(root).sort((a, b) => Number(b) - Number(a)) : [];
  const candidates = [...versions.map((version) => join(root, version, "bin")), "/usr/local/bin", "/usr/bin"];
  const found = candidates.find(
    (directory) => existsSync(join(directory, "initdb")) && existsSync(join(directory, "postgres")),
  );
  if (found === undefined)
    throw new Error(
      `PostgreSQL's initdb and postgres are in none of ${candidates.join(", ")}; install the package postgresql`,
    );
  return found;
}

/** A PostgreSQL of its own, on a unix socket in a temporary folder, gone when disposed of. */
export async function startPostgres(): Promise<{ url: string; [Symbol.asyncDispose](): Promise<void> }> {
  const bin = binDirectory();
  const directory = mkdtempSync(join(tmpdir(), "torpor-pg-"));
  const asNobody = process.getuid?.() === 0 ? { uid: UNPRIVILEGED_ID, gid: UNPRIVILEGED_ID } : {};
  if ("uid" in asNobody) chownSync(directory, UNPRIVILEGED_ID, UNPRIVILEGED_ID);
  const data = join(directory, "data");
  const made = spawnSync(
    join(bin, "initdb"),
    ["-D", data, "-U", "torpor", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C"],
    { ...asNobody, cwd: directory, encoding: "utf8", env: { PATH: process.env["PATH"], HOME: directory } },
  );
  if (made.status !== 0) throw new Error(`initdb failed: ${made.stderr}`);
  const server = spawn(
    join(bin, "postgres"),
    [
      "-D",
      data,
      "-k",
      directory,
      "-c",
      "listen_addresses=",
      "-c",
      "fsync=off",
      "-c",
      "shared_buffers=16MB",
      "-c",
      "max_connections=50",
    ],
    {
      ...asNobody,
      cwd: directory,
      stdio: ["ignore", "ignore", "pipe"],
      env: { PATH: process.env["PATH"], HOME: directory },
    },
  );
  let log = "";
  server.stderr.on("data", (chunk: Buffer) => (log = (log + String(chunk)).slice(-4_000)));
  const exited = new Promise<void>((resolve) => server.once("exit", () => resolve()));
  const url = `postgres://torpor@localhost/postgres?host=${encodeURIComponent(directory)}`;
  const dispose = async (): Promise<void> => {
    server.kill("SIGQUIT"); // at once: nothing in it is worth a checkpoint
    await exited;
    rmSync(directory, { recursive: true, force: true });
  };
  const until = Date.now() + 20_000;
  for (;;) {
    const client = new Client({ connectionString: url });
    try {
      await client.connect();
      await client.end();
      return { url, [Symbol.asyncDispose]: dispose };
    } catch (error) {
      if (Date.now() > until || server.exitCode !== null) {
        await dispose();
        throw new Error(`PostgreSQL did not come up: ${log}`, { cause: error });
      }
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}
