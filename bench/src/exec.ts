import { setTimeout as delay } from "node:timers/promises";
import { Sandbox } from "@torpor/sdk";
import type { Instance } from "@torpor/test";
import { type Figure, summarize } from "./figures.ts";

/** Prints the median of `count` spawns of `/bin/sh -c true`, microseconds. */
const SPAWN_SOURCE = `
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
extern char **environ;
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e6 + t.tv_nsec / 1e3; }
static int order(const void *a, const void *b) { double d = *(double *)a - *(double *)b; return d < 0 ? -1 : d > 0; }
int main(int argc, char **argv) {
  int count = atoi(argv[1]);
  double *took = calloc(count, sizeof *took);
  for (int i = 0; i < count; i++) {
    char *args[] = {"sh", "-c", "true", NULL};
    pid_t pid; int status; double at = now();
    if (posix_spawn(&pid, "/bin/sh", NULL, NULL, args, environ) != 0) return 1;
    waitpid(pid, &status, 0);
    took[i] = now() - at;
  }
  qsort(took, count, sizeof *took, order);
  printf("%.0f\\n", took[count / 2]);
  return 0;
}
`;

/** exec("true") through SDK, server, host and guest, against posix_spawn of a shell inside the same sandbox, in turns. */
export async function execRoundTrip(instance: Instance, rounds: number): Promise<Figure[]> {
  await using sandbox = await Sandbox.create({
    url: instance.url,
    apiKey: instance.apiKey,
    template: "code-interpreter",
    cpu: 2,
  });
  await sandbox.files.write("/tmp/spawn.c", SPAWN_SOURCE);
  const built = await sandbox.exec("gcc -O1 -o /tmp/spawn /tmp/spawn.c", { timeoutSeconds: 120 });
  if (built.exitCode !== 0) throw new Error(`gcc failed: ${built.stderr}`);
  const paced: number[] = [];
  const rapid: number[] = [];
  const inside: number[] = [];
  for (let round = 0; round < rounds; round++) {
    inside.push(Number((await sandbox.exec("/tmp/spawn 15")).stdout) / 1000);
    for (let turn = 0; turn < 8; turn++) {
      await delay(150); // as an agent does, which thinks between commands
      const startedAt = performance.now();
      const { exitCode } = await sandbox.exec("true");
      paced.push(performance.now() - startedAt);
      if (exitCode !== 0) throw new Error(`true ended with ${exitCode}`);
    }
    await delay(300);
    for (let turn = 0; turn < 8; turn++) {
      const startedAt = performance.now();
      await sandbox.exec("true");
      rapid.push(performance.now() - startedAt);
    }
  }
  const [spawn, exec, burst] = [summarize(inside), summarize(paced), summarize(rapid)];
  return [
    { name: "posix_spawn of `/bin/sh -c true` inside, p50", value: spawn.p50, unit: "ms" },
    { name: 'exec("true") round trip, p50', value: exec.p50, unit: "ms" },
    { name: 'exec("true") round trip, p99', value: exec.p99, unit: "ms" },
    {
      name: "  ratio to posix_spawn inside",
      value: exec.p50 / spawn.p50,
      unit: "x",
      most: 1.3,
      against: `posix_spawn, n=${spawn.count * 15}; exec n=${exec.count}`,
    },
    { name: 'exec("true") eight in a row without a pause, p50', value: burst.p50, unit: "ms" },
  ];
}
