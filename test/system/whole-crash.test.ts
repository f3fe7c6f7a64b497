import { ERROR_CODES, type Machine, type Sandbox } from "@torpor/protocol";
import { describe, expect, test } from "vitest";
import { eventually } from "../src/eventually.ts";
import { useInstance } from "../src/use-instance.ts";

interface Page {
  items: Sandbox[];
  next_cursor: string | null;
}

describe("kill -9 of server and host in the middle of 20 creates", () => {
  const torpor = useInstance({ server: true, pool: 2 });

  async function sandboxes(): Promise<Sandbox[]> {
    const found: Sandbox[] = [];
    let cursor: string | null = "";
    while (cursor !== null) {
      const page: Page = await torpor().api.json<Page>(
        `/v1/sandboxes?limit=200${cursor === "" ? "" : `&cursor=${cursor}`}`,
      );
      found.push(...page.items);
      cursor = page.next_cursor;
    }
    return found;
  }

  test.each(["server first", "host first"])(
    "leaves honest records and nothing else, the %s",
    async (order) => {
      const instance = torpor();
      const answers = Array.from({ length: 20 }, (_, index) =>
        instance.api
          .call("/v1/sandboxes", {
            method: "POST",
            body: { template: "base", ttl_seconds: 600, metadata: { order, index: String(index) } },
          })
          .then(
            ({ status, json }) => (status === 201 ? (json as Sandbox).id : undefined),
            () => undefined,
          ),
      );
      await eventually(
        "some to run and others to be under way",
        async () => {
          const { machines } = await instance.host.health();
          return machines.running >= 3 && machines.creating >= 3;
        },
        30_000,
      );
      for (const program of order === "server first" ? ["server", "host"] : ["host", "server"]) {
        if (program === "server") await instance.killServer("SIGKILL");
        else await instance.killHost("SIGKILL");
      }
      const promised = (await Promise.all(answers)).filter((id) => id !== undefined);
      await instance.startHost();
      await instance.startServer();

      // Every record comes to rest, and says what is true of the machine.
      const records = await eventually(
        "all records to be at rest",
        async () => {
          const seen = (await sandboxes()).filter(({ metadata }) => metadata["order"] === order);
          return seen.every(({ state }) => state === "running" || state === "destroyed" || state === "failed")
            ? seen
            : undefined;
        },
        90_000,
      );
      for (const record of records) {
        const answer = await instance.host.call(`/v1/machines/${record.id}`);
        const machine = answer.status === 404 ? undefined : (answer.json as Machine);
        if (record.state === "running") {
          expect(machine?.state).toBe("running");
          const exec = await instance.api.json<{ stdout: string }>(`/v1/sandboxes/${record.id}/exec`, {
            method: "POST",
            body: { cmd: "hostname" },
          });
          expect(exec.stdout).toBe(`${record.id}\n`);
        } else {
          expect(machine?.state ?? "ended").toBe("ended");
          expect(record.reason).not.toBeNull();
          const refused = await instance.api.call(`/v1/sandboxes/${record.id}/exec`, {
            method: "POST",
            body: { cmd: "true" },
          });
          expect(refused.status).toBe(ERROR_CODES.sandbox_ended.status);
        }
      }
      // What was answered with an id is there and runs: both were killed, but not the machines.
      for (const id of promised)
        expect(records.find((record) => record.id === id)).toMatchObject({ state: "running" });
      // And no machine runs that nobody has a record of.
      await eventually(
        "every machine to have its record",
        async () => {
          const running = new Set(records.filter(({ state }) => state === "running").map(({ id }) => id));
          return (await instance.host.list()).every(({ id }) => running.has(id));
        },
        30_000,
      );
      for (const { id, state } of records)
        if (state === "running") await instance.api.json(`/v1/sandboxes/${id}`, { method: "DELETE" });
      expect(await instance.host.list()).toEqual([]);
    },
  );
});
