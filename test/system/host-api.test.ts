import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { ErrorEnvelope, Machine } from "@torpor/protocol";
import { beforeAll, describe, expect, test } from "vitest";
import { eventually } from "../src/eventually.ts";
import { type HttpAnswer, HttpClient } from "../src/http-client.ts";
import { lookAtMachine } from "../src/leak-check.ts";
import { useInstance } from "../src/use-instance.ts";

function codeOf(answer: HttpAnswer): string {
  return (answer.json as ErrorEnvelope).error.code;
}

describe("the host's HTTP interface", () => {
  const torpor = useInstance();
  let machine: Machine;

  beforeAll(async () => {
    machine = await torpor().host.create({ env: { SECRET: "for the guest" } });
  });

  const ports = (port: number, path: string): string => `/v1/machines/${machine.id}/ports/${port}${path}`;

  test("answers nobody without its token", async () => {
    const socket = join(torpor().stateDir, "run", "host.sock");
    for (const authorization of [undefined, "", "Bearer ", "Bearer wrong", `Bearer ${"x".repeat(32)}`]) {
      const stranger = new HttpClient({ socket }, authorization === undefined ? {} : { authorization });
      for (const path of ["/v1/health", "/v1/machines", ports(49_983, "/health"), "/metrics", "/nothing"]) {
        const answer = await stranger.call(path);
        expect([path, answer.status, codeOf(answer)]).toEqual([path, 401, "unauthenticated"]);
      }
      stranger.close();
    }
  });

  test("makes the same id once, however often it is asked", async () => {
    const id = `s${"b".repeat(25)}`;
    const answers = await Promise.all(Array.from({ length: 4 }, () => torpor().host.tryCreate({}, id)));
    expect(answers.map(({ status }) => status).sort((a, b) => a - b)).toEqual([200, 200, 200, 201]);
    await torpor().host.end(id);
    expect([(await torpor().host.tryCreate({}, id)).status, (await torpor().host.end(id)).state]).toEqual([
      410,
      "ended",
    ]);
  });

  test("refuses what makes no sense, by field, and goes on", async () => {
    const cases: [string, string, unknown, number, string][] = [
      ["PUT", "/v1/machines/UPPER", {}, 400, "invalid_request"],
      ["PUT", `/v1/machines/s${"c".repeat(25)}`, "{", 400, "invalid_request"],
      ["PUT", `/v1/machines/s${"c".repeat(25)}`, {}, 400, "invalid_request"],
      ["PUT", `/v1/machines/s${"c".repeat(25)}`, "x".repeat(3_000_000), 413, "payload_too_large"],
      ["PATCH", `/v1/machines/${machine.id}`, { deadline_unix_ms: "soon" }, 400, "invalid_request"],
      ["DELETE", `/v1/machines/${machine.id}?reason=whim`, undefined, 400, "invalid_request"],
      ["DELETE", `/v1/machines/s${"d".repeat(25)}`, undefined, 404, "sandbox_not_found"],
      ["GET", ports(0, "/"), undefined, 400, "invalid_request"],
      ["GET", ports(65_536, "/"), undefined, 400, "invalid_request"],
      ["POST", "/v1/nothing", {}, 404, "not_found"],
    ];
    for (const [method, path, body, status, code] of cases) {
      const answer = await torpor().host.call(path, { method, ...(body === undefined ? {} : { body }) });
      expect([method, path, answer.status, codeOf(answer)]).toEqual([method, path, status, code]);
    }
    expect((await torpor().host.get(machine.id)).state).toBe("running");
  });

  test("keeps to itself what of the agent is the host's alone", async () => {
    for (const path of ["/torpor/init", "/torpor/freeze", "/torpor/prepare", "/torpor/anything"]) {
      const answer = await torpor().host.call(ports(49_983, path), { method: "POST", body: {} });
      expect([path, answer.status]).toEqual([path, 403]);
    }
    for (const path of [
      "//torpor/init",
      "/./torpor/init",
      "/x/../torpor/init",
      "/%74orpor/init",
      "/torpor%2finit",
    ]) {
      const answer = await torpor().host.call(ports(49_983, path), { method: "POST", body: {} });
      expect(answer.status).toBeGreaterThanOrEqual(300);
    }
    expect(await torpor().host.output(machine.id, "hostname")).toBe(machine.id);
  });

  test("leads no path of one machine to another", async () => {
    const other = await torpor().host.create();
    await torpor().host.output(other.id, "echo secret > /tmp/secret");
    const answer = await torpor().host.call(
      `/v1/machines/${machine.id}/ports/49983/../../../${other.id}/ports/49983/files?path=/tmp/secret`,
    );
    expect(answer.body.toString("utf8")).not.toContain("secret\n");
    await torpor().host.end(other.id);
  });

  test("passes requests to any port of the guest, with none of its own secrets", async () => {
    await torpor().host.output(
      machine.id,
      `cat > /tmp/echo.py << 'EOF'
import http.server, json
class Echo(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        answer = json.dumps({"path": self.path, "headers": {k.lower(): v for k, v in self.headers.items()}, "body": body}).encode()
        self.send_response(201); self.send_header("x-own", "yes"); self.send_header("content-length", str(len(answer))); self.end_headers(); self.wfile.write(answer)
http.server.HTTPServer(("0.0.0.0", 8000), Echo).serve_forever()
EOF
(python3 /tmp/echo.py > /dev/null 2>&1 &) ; for i in $(seq 100); do (exec 3<>/dev/tcp/127.0.0.1/8000) 2>/dev/null && exit 0; sleep 0.05; done; exit 1`,
    );
    const answer = await torpor().host.call(ports(8000, "/a%20b/../c?q=1&r=%2F"), {
      method: "POST",
      body: "the body",
      headers: { "x-mine": "kept", "x-access-token": "forged", "x-torpor-host-key": "forged" },
    });
    expect([answer.status, answer.headers["x-own"]]).toEqual([201, "yes"]);
    const seen = answer.json as { path: string; headers: Record<string, string>; body: string };
    expect(seen.body).toBe("the body");
    expect(seen.path).toMatch(/q=1&r=%2F$/);
    expect(seen.headers["x-mine"]).toBe("kept");
    for (const name of ["authorization", "x-access-token", "x-torpor-host-key"])
      expect(seen.headers[name]).toBeUndefined();
  });

  test("says that a port does not answer, and that a machine has ended", async () => {
    const closed = await torpor().host.call(ports(9, "/"));
    expect([closed.status, codeOf(closed)]).toEqual([503, "guest_unavailable"]);
    const other = await torpor().host.create();
    await torpor().host.end(other.id, "idle");
    const ended = await torpor().host.call(`/v1/machines/${other.id}/ports/49983/health`);
    expect([ended.status, codeOf(ended), (ended.json as ErrorEnvelope).error.details["reason"]]).toEqual([
      410,
      "sandbox_ended",
      "idle",
    ]);
    const unknown = await torpor().host.call(`/v1/machines/s${"e".repeat(25)}/ports/49983/health`);
    expect([unknown.status, codeOf(unknown)]).toEqual([404, "sandbox_not_found"]);
  });

  test("wakes a waiting reader of events when something happens", async () => {
    const { last_seq: last } = await torpor().host.events(0);
    const waiting = torpor().host.events(last, 30_000);
    await torpor().host.setDeadline(machine.id, Date.now() + 3_600_000);
    expect((await waiting).events).toMatchObject([{ type: "deadline_changed", machine_id: machine.id }]);
  });

  test("shows the machine's console, and its own gauges", async () => {
    expect((await torpor().host.call(`/v1/machines/${machine.id}/logs`)).status).toBe(200);
    expect((await torpor().host.call("/metrics")).body.toString("utf8")).toContain(
      'torpor_host_machines{state="running"} 1',
    );
  });

  test("logs no secret", () => {
    const log = torpor().log("host");
    expect(log).toContain(machine.id);
    expect(log).not.toContain("for the guest");
    expect(log).not.toMatch(/"access_token":"[0-9a-f]|"host_key":"[0-9a-f]/);
  });

  test("stops within five seconds when told, leaves machines running, and takes them over again", async () => {
    const startedAt = performance.now();
    expect(await torpor().killHost("SIGTERM")).toBe("exited with 0");
    expect(performance.now() - startedAt).toBeLessThan(5000);
    expect(() => readFileSync(join(torpor().stateDir, "run", "host.json"))).toThrow("ENOENT");
    expect((await lookAtMachine(torpor().stateDir)).process.size).toBeGreaterThan(0);
    await torpor().startHost();
    expect(await torpor().host.output(machine.id, "hostname")).toBe(machine.id);
  });

  test("drains once for all who ask: what has a deadline ends, the rest sleeps for the next host, and none is made afterwards", async () => {
    const ephemeral = await torpor().host.create({ deadline_unix_ms: Date.now() + 3_600_000 });
    await torpor().host.setDeadline(machine.id, null);
    const creating = torpor().host.tryCreate({ deadline_unix_ms: Date.now() + 3_600_000 });
    await eventually(
      "a create to be under way",
      async () => (await torpor().host.health()).machines.creating === 1,
    );
    const drains = [torpor().host.drain(), torpor().host.drain()];
    const late = torpor().host.tryCreate();
    expect((await Promise.all(drains)).map((answer) => answer)).toEqual([
      { drained: true },
      { drained: true },
    ]);
    expect(codeOf(await late)).toBe("host_unavailable");
    expect([201, 410]).toContain((await creating).status);
    expect(await torpor().host.list()).toMatchObject([{ id: machine.id, state: "hibernated" }]);
    expect((await torpor().host.get(ephemeral.id)).reason).toBe("shutdown");
    const left = await lookAtMachine(torpor().stateDir);
    expect(
      [...left["machine directory"], ...left.cgroup, ...left.link].filter((name) =>
        name.includes(torpor().names.tag),
      ),
    ).toEqual([]);
    expect(codeOf(await torpor().host.tryCreate())).toBe("host_unavailable");
    await torpor().killHost("SIGTERM");
    await torpor().startHost();
    expect(await torpor().host.output(machine.id, "hostname")).toBe(machine.id);
    const again = await torpor().host.create();
    expect(await torpor().host.output(again.id, "echo works again")).toBe("works again");
  });
});
