import { mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { compileEarly, createLog, Scope, SecretValues, systemClock } from "@torpor/base";
import { API_KEY_ANYWHERE } from "./auth/authenticator.ts";
import { admitBootstrapKey, openBootstrapKey } from "./auth/bootstrap-key.ts";
import { readConfig, type ServerConfig } from "./config.ts";
import { dropPrivileges, giveFolder } from "./drop-privileges.ts";
import { CheckpointKey } from "./ledger/checkpoint-key.ts";
import { liveInstance, writeInstance } from "./instance-record.ts";
import { startServer } from "./start-server.ts";
import { FrontDoor } from "./http/front-door.ts";
import type { TlsOptions, TlsPair } from "./http/tls-front.ts";
import { loadSqlite, openDatabase } from "./store/open-database.ts";
import { KeyStore } from "./store/key-store.ts";

/** After SIGTERM the process is gone within this time, whatever still runs. */
const EXIT_WITHIN_MS = 4_500;

async function main(config: ServerConfig): Promise<void> {
  compileEarly();
  const secretValues = new SecretValues([API_KEY_ANYWHERE]);
  const log = createLog({
    name: "server",
    level: config.logLevel,
    redact: (line) => secretValues.redact(line),
  });
  const runDir = join(config.stateDir, "run");
  const serverDir = join(config.stateDir, "server");
  mkdirSync(runDir, { recursive: true, mode: 0o755 });
  const recordFile = join(runDir, "server.json");
  const other = liveInstance(recordFile);
  if (other !== undefined)
    throw new Error(
      `a server of ${config.stateDir} runs already as pid ${other}; stop it with torpor down, or use another TORPOR_STATE_DIR`,
    );

  // With root's rights, where it has them, is done only what takes them: files in folders that are root's, addresses, and the
  // folder that is the server's. Nothing in that folder is opened by root, since whoever takes over a server can put links there.
  await using scope = new Scope();
  const { listen } = config;
  const door = await FrontDoor.open({ listen, tls: readTls(config.tls), clock: systemClock, log });
  scope.defer(() => door.close());
  const bootstrap = openBootstrapKey(config.apiKeyFile, config.apiKeyOwner);
  writeInstance(recordFile, door.url, tlsUrl(config.tls, door.tlsPort));
  mkdirSync(serverDir, { recursive: true, mode: 0o700 });
  if (config.runAs !== undefined) {
    if (config.database.kind === "sqlite") loadSqlite();
    giveFolder(serverDir, config.runAs);
    dropPrivileges(config.runAs);
  }

  const uploadsDirectory = join(serverDir, "uploads");
  mkdirSync(uploadsDirectory, { recursive: true, mode: 0o700 });
  const database = await openDatabase(config.database);
  scope.defer(() => database.close());
  await admitBootstrapKey(new KeyStore(database), bootstrap.key, systemClock);
  if (bootstrap.isNew)
    log.info({ op: "bootstrap", outcome: "admin key written", apiKeyFile: config.apiKeyFile });
  const server = await startServer({
    database,
    checkpointKey: CheckpointKey.open(join(serverDir, "ledger-key.pem")),
    host: { url: config.hostUrl, token: config.hostToken },
    door,
    maxLifetimeSeconds: config.maxLifetimeSeconds,
    previewUrl: config.previewUrl,
    uploadsDirectory,
    e2bDomain: config.e2bDomain,
    webhooks: { allow: config.webhookAllow },
    log,
    secretValues,
  });
  scope.defer(() => server.close());
  process.stdout.write(
    `${JSON.stringify({ ready: true, url: server.url, tls_port: server.tlsPort, pid: process.pid })}\n`,
  );
  log.info({ op: "start", outcome: "serving", url: server.url, store: database.kind });

  const signal = await new Promise<string>((resolve) => {
    for (const name of ["SIGTERM", "SIGINT"] as const) process.once(name, () => resolve(name));
  });
  log.info({ op: "stop", outcome: "stopping", signal });
  setTimeout(() => process.exit(0), EXIT_WITHIN_MS).unref();
}

/** Read first before rights are given up: a key is root's to read, and then stays in use until the server starts again. */
function readTls(tls: ServerConfig["tls"]): TlsOptions | undefined {
  if (tls === undefined) return undefined;
  const { listen, certFile, keyFile } = tls;
  const reread = (): TlsPair => ({ cert: readFileSync(certFile), key: readFileSync(keyFile) });
  return { listen, ...reread(), reread };
}

/** What clients on this machine call it over TLS; undefined when it is not spoken. */
function tlsUrl(tls: ServerConfig["tls"], port: number | undefined): string | undefined {
  if (tls === undefined || port === undefined) return undefined;
  const { host } = tls.listen;
  const isHere = ["0.0.0.0", "::", "::1"].includes(host) || host.startsWith("127.");
  return `https://${isHere ? "localhost" : host.includes(":") ? `[${host}]` : host}:${port}`;
}

try {
  await main(readConfig(process.env));
  process.exit(0);
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
  process.exit(1);
}
