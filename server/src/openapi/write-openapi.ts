import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Scope, silentLog } from "@torpor/base";
import { startServer } from "../start-server.ts";
import { openDatabase } from "../store/open-database.ts";

/** Where the document is kept in the repository. */
const TARGET = fileURLToPath(new URL("../../../docs/openapi.json", import.meta.url));

// A real server on an empty store tells its own reference: there is no second list of routes to keep true.
await using scope = new Scope();
const directory = mkdtempSync(join(tmpdir(), "torpor-openapi-"));
scope.defer(() => rmSync(directory, { recursive: true, force: true }));
const database = await openDatabase({ kind: "sqlite", path: join(directory, "empty.sqlite") });
scope.defer(() => database.close());
const server = await startServer({
  database,
  host: { url: `unix:${join(directory, "no-host.sock")}`, token: "none" },
  log: silentLog,
});
scope.defer(() => server.close());
writeFileSync(TARGET, await (await fetch(`${server.url}/v1/openapi.json`)).text());
