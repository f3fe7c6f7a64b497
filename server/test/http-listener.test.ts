import { request } from "node:http";
import { promisify } from "node:util";
import { expect, onTestFinished, test } from "vitest";
import { HttpListener } from "../src/http/http-listener.ts";
import { eventually } from "./world.ts";

test("what was asked before there is anything to serve waits, and is let go where its client has left", async () => {
  const listener = new HttpListener();
  onTestFinished(() => listener.close());
  const { port } = await listener.listen({ host: "127.0.0.1", port: 0 });
  const heard: (string | undefined)[] = [];
  listener.server.on("request", ({ url }) => heard.push(url));
  const left = request({ host: "127.0.0.1", port, path: "/left" });
  left.on("error", () => {});
  left.end();
  const stays = fetch(`http://127.0.0.1:${port}/stays`);
  await eventually(() => heard.length === 2);
  left.destroy();
  const connections = promisify(listener.server.getConnections.bind(listener.server));
  await eventually(async () => (await connections()) === 1);
  const served: (string | undefined)[] = [];
  listener.serve(({ url }, outgoing) => {
    served.push(url);
    outgoing.end("served");
  });
  expect(await (await stays).text()).toBe("served");
  expect(served).toEqual(["/stays"]);
});
