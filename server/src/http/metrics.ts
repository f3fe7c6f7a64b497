import { collectDefaultMetrics, Counter, Gauge, Histogram, Registry } from "prom-client";

/** The server's figures in Prometheus' terms; nothing is registered globally, so instances do not meet. */
export class Metrics {
  readonly registry = new Registry();
  readonly #requests: Histogram;
  readonly #execs: Counter;
  readonly #sandboxes: Gauge;
  readonly #pool: Gauge;
  readonly #hostUp: Gauge;

  constructor() {
    const registers = [this.registry];
    collectDefaultMetrics({ register: this.registry });
    this.#requests = new Histogram({
      name: "torpor_http_request_duration_seconds",
      help: "Time from a request's head to the end of its answer; status 499 means that the client left first.",
      labelNames: ["route", "status"],
      buckets: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 120],
      registers,
    });
    this.#execs = new Counter({
      name: "torpor_execs_total",
      help: "Commands by how they ended.",
      labelNames: ["outcome"],
      registers,
    });
    this.#sandboxes = new Gauge({
      name: "torpor_sandboxes",
      help: "Sandbox records by state.",
      labelNames: ["state"],
      registers,
    });
    this.#pool = new Gauge({
      name: "torpor_pool_ready",
      help: "Restored machines waiting, by template.",
      labelNames: ["host", "template"],
      registers,
    });
    this.#hostUp = new Gauge({
      name: "torpor_host_up",
      help: "1 when the host answers.",
      labelNames: ["host"],
      registers,
    });
  }

  request(route: string, status: number, durationMs: number): void {
    this.#requests.observe({ route, status: String(status) }, durationMs / 1_000);
  }

  exec(outcome: string): void {
    this.#execs.inc({ outcome });
  }

  /** Replaces the figures that are read when someone asks. */
  setSandboxes(counts: readonly { state: string; count: number }[]): void {
    this.#sandboxes.reset();
    for (const { state, count } of counts) this.#sandboxes.set({ state }, count);
  }

  setHost(host: string, up: boolean, pool: readonly { template: string; ready: number }[]): void {
    this.#hostUp.set({ host }, up ? 1 : 0);
    for (const { template, ready } of pool) this.#pool.set({ host, template }, ready);
  }
}
