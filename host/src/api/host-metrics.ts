import type { HostHealth } from "@torpor/protocol";

/** The host's gauges in Prometheus text format. */
export function renderMetrics(health: HostHealth): string {
  const lines = [
    "# HELP torpor_host_machines Machines on this host by state.",
    "# TYPE torpor_host_machines gauge",
    `torpor_host_machines{state="running"} ${health.machines.running}`,
    `torpor_host_machines{state="creating"} ${health.machines.creating}`,
    `torpor_host_machines{state="hibernated"} ${health.machines.hibernated}`,
    "# HELP torpor_host_pool_ready Machines restored and waiting, by template.",
    "# TYPE torpor_host_pool_ready gauge",
    ...health.pool.map((pool) => `torpor_host_pool_ready{template="${pool.template}"} ${pool.ready}`),
    "# HELP torpor_host_pool_empty Runtime processes started and waiting for an image, by template.",
    "# TYPE torpor_host_pool_empty gauge",
    ...health.pool.map((pool) => `torpor_host_pool_empty{template="${pool.template}"} ${pool.empty}`),
    "# HELP torpor_host_pool_empty_target Runtime processes the pool means to keep waiting, by template.",
    "# TYPE torpor_host_pool_empty_target gauge",
    ...health.pool.map(
      (pool) => `torpor_host_pool_empty_target{template="${pool.template}"} ${pool.empty_target}`,
    ),
    "# HELP torpor_host_pool_target Machines the pool means to keep waiting, by template.",
    "# TYPE torpor_host_pool_target gauge",
    ...health.pool.map((pool) => `torpor_host_pool_target{template="${pool.template}"} ${pool.target}`),
  ];
  return `${lines.join("\n")}\n`;
}
