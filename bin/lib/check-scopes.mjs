// Checks that what proves a right to act (scopes, records) is made where rights are established and nowhere else, and that
// routes reach stores, hosts and guests only through what they are given. What they are given is held to that by types:
// server/test/access/guarded-deps.ts.
//   node bin/lib/check-scopes.mjs [ROOT]
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join, relative } from "node:path";

/** A text that makes a capability, and the files below server/src that may hold it. */
const MAKERS = [
  { text: /\b(?:TenantScope|OperatorScope)\.fromVerifiedKey\b/, only: ["auth/authenticator.ts"] },
  { text: /\bServerScope\.fromVerifiedKey\b/, only: ["auth/whole-server.ts"] },
  { text: /\bServerScope\.forHousekeeping\b/, only: ["start-server.ts"] },
  { text: /\bHostScope\.fromHostLink\b/, only: ["host/placement.ts"] },
  { text: /\bReportedMachine\.of\b/, only: ["sandbox/host-watch.ts"] },
  { text: /\bnew GuestClient\(/, only: ["guest/", "routes/"] },
];

/** Nominal types, and the file that gives them out. A cast to one anywhere else is a forgery. */
const NOMINAL = {
  TenantScope: "auth/tenant-scope.ts",
  OperatorScope: "auth/tenant-scope.ts",
  ServerScope: "auth/tenant-scope.ts",
  HostScope: "auth/tenant-scope.ts",
  SandboxRecord: "store/sandbox-record.ts",
  AddressHolder: "store/sandbox-store.ts",
  SnapshotRecord: "store/snapshot-store.ts",
  WebhookRecord: "store/webhook-store.ts",
  BuiltTemplate: "store/template-store.ts",
  BuildRecord: "store/template-store.ts",
  UploadGrant: "e2b/template/template-files.ts",
  AccountRecord: "store/account-store.ts",
  BudgetRecord: "store/budget-store.ts",
  IdempotencySlot: "store/idempotency-store.ts",
  ReportedMachine: "host/owned-machine.ts",
};

/** What routes may take as values from the modules of the stores: what shows and names things, not what finds them. */
const SHOWS = /^(?:to[A-Z]\w*|is[A-Z]\w*|idempotencySlot|PAGE_\w+)$/;

const IMPORT = /^import\s+(type\s+)?(?:\{([^}]*)\}|(\w+))\s+from\s+"([^"]+)";/gm;

/** The violations of one file, as sentences. `name` is its path below server/src. */
function violationsOf(name, text) {
  const code = text.replace(/\/\*[\s\S]*?\*\//g, "").replace(/^\s*\/\/.*$/gm, "");
  const found = [];
  for (const { text: maker, only } of MAKERS) {
    const [said] = maker.exec(code) ?? [];
    if (
      said !== undefined &&
      !only.some((place) => name === place || (place.endsWith("/") && name.startsWith(place)))
    )
      found.push(`${name} says ${said}, which is for ${only.join(", ")} alone`);
  }
  for (const [type, home] of Object.entries(NOMINAL))
    if (name !== home && new RegExp(String.raw`\bas\s+(?:unknown\s+as\s+)?${type}\b`).test(code))
      found.push(`${name} casts to ${type}, which ${home} alone gives out`);
  if (!name.startsWith("routes/")) return found;
  if (/\bnew\s+(?:\w+Store|HostClient|HostConnection|HostLink|\w+Placement)\b/.test(code))
    found.push(`${name} makes a store or a host link of its own; routes use what RouteDeps gives them`);
  for (const [, typeOnly, names = "", single = "", from] of code.matchAll(IMPORT)) {
    if (typeOnly !== undefined) continue;
    const taken = (single || names)
      .split(",")
      .map((part) => part.trim())
      .filter((part) => part !== "" && !part.startsWith("type "));
    if (from === "kysely" || from.endsWith("/open-database.ts"))
      found.push(`${name} imports ${from}: routes speak to no database`);
    else if (from.includes("/store/"))
      for (const value of taken)
        if (!SHOWS.test(value))
          found.push(`${name} imports ${value} from ${from}; routes use what RouteDeps gives them`);
  }
  return found;
}

function sourcesBelow(directory) {
  if (!existsSync(directory)) return [];
  return readdirSync(directory, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name.endsWith(".ts"))
    .map((entry) => join(entry.parentPath, entry.name));
}

const source = join(process.argv[2] ?? ".", "server", "src");
const files = sourcesBelow(source);
const violations = files.flatMap((file) => violationsOf(relative(source, file), readFileSync(file, "utf8")));
for (const violation of violations) console.error(`server/src/${violation}`);
if (violations.length > 0) process.exitCode = 1;
else console.log(`${files.length} files of the server: scopes are made by authentication alone`);
