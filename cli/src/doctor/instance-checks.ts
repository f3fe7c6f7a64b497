import { connect } from "node:net";
import { CodedError, DEFAULT_TEMPLATE } from "@torpor/protocol";
import { clientFor } from "../api/client.ts";
import type { Invocation } from "../context.ts";
import { instanceCommand } from "../instance/instance-command.ts";
import { missingParts } from "../instance/installation.ts";
import { type LiveStatus, readStatus } from "../instance/instance-status.ts";
import type { Check, Finding } from "./check.ts";
import { leftoversCheck } from "./host-findings.ts";

/** Checks of this checkout and of the instance that runs from the state directory, if one does. */
export function instanceChecks(invocation: Invocation, listen: string): Check[] {
  const shown = (command: string): string => instanceCommand(invocation.paths, command);
  return [
    {
      name: "build",
      why: "host, server and guest agent are started from here",
      required: true,
      probe: async () => {
        const missing = missingParts(invocation.context.installation);
        if (missing.length === 0) return { ok: true, found: invocation.context.installation.root };
        return { ok: false, found: missing.join("; "), fix: "Run bin/quickstart." };
      },
    },
    {
      name: "instance",
      why: "what 'torpor up' starts",
      required: false,
      probe: async () => {
        const status = await statusOrNull(invocation);
        if (status === null)
          return { ok: false, found: "not running", fix: `Start it: ${shown("sudo torpor up --detach")}` };
        const parts = `${status.url}, host ${status.pids.host || "down"}, server ${status.pids.server || "down"}`;
        if (status.healthy) return { ok: true, found: parts };
        return {
          ok: false,
          found: `${parts}: does not answer`,
          fix: `See why: ${shown("torpor logs host")}; ${shown("torpor logs server")}. Restart: ${shown("sudo torpor down --keep-sandboxes")}, then ${shown("sudo torpor up --detach")}`,
        };
      },
    },
    {
      name: "port",
      why: "the API listens there",
      required: false,
      probe: async () => {
        const status = await statusOrNull(invocation);
        if (status !== null) return { ok: true, found: `in use by the instance: ${status.url}` };
        const at = listen.lastIndexOf(":");
        const port = Number(listen.slice(at + 1));
        const taken = port !== 0 && (await answersAt(listen.slice(0, at).replace(/^\[|\]$/g, ""), port));
        if (!taken) return { ok: true, found: `${listen} is free` };
        return {
          ok: false,
          found: `${listen} is taken by another program`,
          fix: `Choose another: ${shown("sudo torpor up --listen 127.0.0.1:PORT")}`,
        };
      },
    },
    {
      name: "template",
      why: "what a sandbox starts from, with the golden snapshot that makes it quick",
      required: false,
      probe: () => probeTemplate(invocation),
    },
    leftoversCheck(invocation.paths),
  ];
}

async function statusOrNull(invocation: Invocation): Promise<LiveStatus | null> {
  try {
    return await readStatus(invocation.paths, invocation.context.installation);
  } catch (error) {
    if (error instanceof CodedError && error.code === "host_unavailable") return null;
    throw error;
  }
}

async function probeTemplate(invocation: Invocation): Promise<Finding> {
  const fix = `Build it: ${instanceCommand(invocation.paths, `torpor template build ${DEFAULT_TEMPLATE}`)}`;
  if ((await statusOrNull(invocation)) === null)
    return {
      ok: false,
      found: "unknown: no instance runs",
      fix: `Start Torpor first: ${instanceCommand(invocation.paths, "sudo torpor up --detach")}`,
    };
  const template = (await clientFor(invocation).templates.list()).find(
    (entry) => entry.name === DEFAULT_TEMPLATE,
  );
  if (template === undefined) return { ok: false, found: `${DEFAULT_TEMPLATE} is not built`, fix };
  if (template.golden.length === 0)
    return { ok: false, found: `${DEFAULT_TEMPLATE} has no golden snapshot yet`, fix };
  return {
    ok: true,
    found: `${DEFAULT_TEMPLATE} ${template.hash.slice(0, 16)}, golden for ${template.golden.join(", ")}`,
  };
}

function answersAt(host: string, port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ host, port, timeout: 2_000 });
    const settle = (answer: boolean): void => {
      socket.destroy();
      resolve(answer);
    };
    socket.once("connect", () => settle(true));
    socket.once("error", () => settle(false));
    socket.once("timeout", () => settle(false));
  });
}
