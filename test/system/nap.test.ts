import { setTimeout as delay } from "node:timers/promises";
import { afterEach, describe, expect, test } from "vitest";
import { eventually } from "../src/eventually.ts";
import { useInstance } from "../src/use-instance.ts";

const NAP_S = 12;
/** How much of it passes before, and how long the machine then sleeps: for longer than is left. */
const BEFORE_MS = 4000;
const ASLEEP_MS = 14_000;
/** What starting the programs, and a busy machine, may add; less than a nap that is begun anew would. */
const SLACK_MS = 3500;

/**
 * Naps in three ways, each told with how it ended, when it began and when it ended: coreutils' `sleep`; C's usleep(), which is not
 * told what is left of it; and until a moment, which is due by the real clock. And one without an end.
 */
const BEGIN_NAPS = `cat > /workspace/nap <<'PROGRAM'
name=$1 began=$(date +%s.%N); shift
"$@"
echo "$name $? $began $(date +%s.%N)" >> /workspace/naps
PROGRAM
cat > /workspace/in-c.py <<'PROGRAM'
import ctypes, sys, time
libc = ctypes.CDLL(None)
if sys.argv[1] == "usleep":
    sys.exit(libc.usleep(${NAP_S}000000))
until = (ctypes.c_long * 2)(int(time.time()) + ${NAP_S}, 0)
sys.exit(libc.clock_nanosleep(0, 1, until, None))
PROGRAM
cd /workspace
(bash nap sleep sleep ${NAP_S} & bash nap usleep python3 in-c.py usleep & bash nap until python3 in-c.py until & bash nap infinity sleep infinity & wait) > /dev/null 2>&1 < /dev/null &
disown -a`;

interface Nap {
  status: number;
  beganMs: number;
  endedMs: number;
}

/** When something happened: Unix milliseconds before and after. */
type Between = [fromMs: number, toMs: number];

async function between<T>(act: () => Promise<T>): Promise<{ moment: Between; value: T }> {
  const fromMs = Date.now();
  const value = await act();
  return { moment: [fromMs, Date.now()], value };
}

describe("a nap of a program inside", () => {
  const torpor = useInstance({ pool: 0, shells: 2 });
  const output = (id: string, command: string): Promise<string> => torpor().host.output(id, command);
  afterEach(() => torpor().host.endAll());

  async function endedNaps(id: string, count: number): Promise<Map<string, Nap>> {
    return eventually(
      `${count} naps to have ended`,
      async () => {
        const lines = (await output(id, "cat /workspace/naps 2> /dev/null || true"))
          .split("\n")
          .filter(Boolean);
        return lines.length < count ? undefined : new Map(lines.map(napIn));
      },
      2 * NAP_S * 1000,
    );
  }

  test("has the time left after a wake that it had before, in a copy too, and a snapshot's parent goes on", async () => {
    const { id } = await torpor().host.create();
    const { id: other } = await torpor().host.create();
    for (const machine of [id, other]) {
      await output(machine, BEGIN_NAPS);
      await eventually("the naps to have begun", async () =>
        /^4$/m.test(await output(machine, "pgrep -c -f '^(sleep|python3 in-c.py) '")),
      );
    }
    await delay(BEFORE_MS);
    const taken = await between(() => torpor().host.snapshot(other));
    const slept = await between(() => torpor().host.hibernate(id));
    // Nothing happens to the parent but the snapshot.
    const parent = await endedNaps(other, 3);
    for (const { status, beganMs, endedMs } of parent.values()) {
      expect(status).toBe(0);
      expect(endedMs - beganMs).toBeLessThan(NAP_S * 1000 + SLACK_MS);
    }
    await delay(slept.moment[1] + ASLEEP_MS - Date.now());

    const woken = await between(() => torpor().host.wake(id));
    const copied = await between(() => torpor().host.create({ from_snapshot: taken.value.id }));
    for (const [machine, saved, restored] of [
      [id, slept.moment, woken.moment],
      [copied.value.id, taken.moment, copied.moment],
    ] as const) {
      const naps = await endedNaps(machine, 3);
      expect([...naps.values()].map(({ status }) => status)).toEqual([0, 0, 0]);
      for (const name of ["sleep", "usleep"]) {
        const { beganMs = NaN, endedMs = NaN } = naps.get(name) ?? {};
        const leastMs = saved[0] - beganMs + endedMs - restored[1];
        const mostMs = saved[1] - beganMs + endedMs - restored[0];
        process.stdout.write(
          `${name} ${NAP_S}: ${((saved[0] - beganMs) / 1000).toFixed(1)} s before, ${((endedMs - restored[1]) / 1000).toFixed(1)} s after ${((restored[0] - saved[1]) / 1000).toFixed(1)} s on disk\n`,
        );
        expect(mostMs, name).toBeGreaterThan(NAP_S * 1000);
        expect(leastMs, name).toBeLessThan(NAP_S * 1000 + SLACK_MS);
      }
      // What waits for a moment of the real clock is late, and does not wait once more.
      expect(naps.get("until")?.endedMs).toBeLessThan(restored[1] + SLACK_MS);
      expect(await output(machine, "pgrep -c -x -f 'sleep infinity'")).toBe("1");
    }
  });
});

function napIn(line: string): [name: string, nap: Nap] {
  const [name = "", status, began, ended] = line.split(" ");
  return [name, { status: Number(status), beganMs: Number(began) * 1000, endedMs: Number(ended) * 1000 }];
}
