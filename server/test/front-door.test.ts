import { once } from "node:events";
import { type IncomingMessage, request } from "node:http";
import { expect, onTestFinished, test } from "vitest";
import { silentLog, systemClock } from "@torpor/base";
import { FrontDoor } from "../src/http/front-door.ts";
import { eventually } from "./world.ts";

test("what is asked before anything is served waits and is answered then, upgrades too", async () => {
  const door = await FrontDoor.open({
    listen: { host: "127.0.0.1", port: 0 },
    clock: systemClock,
    log: silentLog,
  });
  onTestFinished(() => door.close());
  const ask = (headers: Record<string, string>, event: string): Promise<[IncomingMessage]> =>
    once(request(`${door.url}/early`, { headers }).end(), event) as Promise<[IncomingMessage]>;
  let came = 0;
  door.server.prependListener("request", () => (came += 1));
  door.server.prependListener("upgrade", () => (came += 1));
  const answer = ask({}, "response");
  const upgraded = ask({ connection: "upgrade", upgrade: "echo" }, "upgrade");
  await eventually(() => came === 2);
  const switching = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n";
  door.server.on("upgrade", (incoming: IncomingMessage, connection) =>
    connection.end(`${switching}x-path: ${incoming.url}\r\n\r\n`),
  );
  door.serve((incoming, outgoing) => void outgoing.end(incoming.url));
  expect((await upgraded)[0].headers["x-path"]).toBe("/early");
  const body = (await (await answer)[0].toArray()) as Buffer[];
  expect(String(Buffer.concat(body))).toBe("/early");
});
