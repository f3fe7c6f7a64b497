// Stands in for host and server: speaks their start-up protocol (run file, ready line, signals) over real sockets.
// FAKE_<NAME> in the environment says how it misbehaves: die, never-ready, deaf (ignores TERM).
import { readFileSync, renameSync, rmSync, writeFileSync, appendFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";

const name = process.argv[2];
const stateDir = process.env.TORPOR_STATE_DIR;
const behaviour = process.env[`FAKE_${name.toUpperCase()}`] ?? "";
const note = (line) => appendFileSync(join(stateDir, "trace.log"), `${name} ${line}\n`);
note("start");
if (process.env.TORPOR_TLS_CERT) note(`TLS ${process.env.TORPOR_TLS_CERT} ${process.env.TORPOR_TLS_KEY}`);
if (behaviour === "die") {
  process.stderr.write(`${JSON.stringify({ level: 50, msg: `${name} cannot start: no such device` })}\n`);
  process.exit(3);
}
const startTime = Number(readFileSync("/proc/self/stat", "utf8").split(") ").at(-1).split(" ")[19]);
const server = createServer((request, response) => {
  note(`${request.method} ${request.url}`);
  response.setHeader("content-type", "application/json");
  if (request.url === "/crash") process.exit(7);
  if (name === "host" && request.headers.authorization !== `Bearer ${process.env.TORPOR_HOST_TOKEN}`) {
    response.statusCode = 401;
    return response.end(
      JSON.stringify({
        error: {
          code: "unauthenticated",
          message: "wrong token",
          details: {},
          request_id: "r",
          retryable: false,
        },
      }),
    );
  }
  if (request.url === "/v1/drain")
    rmSync(join(stateDir, "host", "machines"), { recursive: true, force: true });
  response.end(JSON.stringify({ driver: "gvisor", acceleration: "systrap", status: "ok" }));
});
const socket = join(stateDir, "run", "host.sock");
if (name === "host") rmSync(socket, { force: true });
server.listen(name === "host" ? socket : { port: 0, host: "127.0.0.1" }, () => {
  if (behaviour === "never-ready") return;
  const where = name === "host" ? { socket } : whereServed();
  const path = join(stateDir, "run", `${name}.json`);
  writeFileSync(`${path}.new`, JSON.stringify({ pid: process.pid, start_time: startTime, ...where }));
  renameSync(`${path}.new`, path);
  process.stdout.write(`${JSON.stringify({ ready: true, ...where })}\n`);
});
function whereServed() {
  const { port } = server.address();
  const tls = process.env.TORPOR_TLS_CERT ? { tls_url: `https://localhost:${port}` } : {};
  return { url: `http://127.0.0.1:${port}`, ...tls };
}
process.on("SIGTERM", () => {
  note("TERM");
  if (behaviour !== "deaf") process.exit(0);
});
