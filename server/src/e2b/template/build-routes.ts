import { CodedError } from "@torpor/protocol";
import { z } from "zod";
import type { Answer, Call } from "../../http/api.ts";
import { guardAgainstStall } from "../../http/stall-guard.ts";
import type { RouteDeps } from "../../routes/route-deps.ts";
import { BUILD_LOG_LEVELS, type BuildLogEntry } from "../../store/build-log-store.ts";
import { addE2bRoute } from "../routes/add-e2b-route.ts";
import { buildSpecSchema } from "./build-spec.ts";
import { uploadOrigin } from "./upload-origin.ts";

/** More than any host has, and what every database takes: 1 TiB. */
const mebibytes = z.number().int().positive().max(1_048_576).nullish();

const requestSchema = z.object({
  name: z.string().max(400).nullish(),
  /** What older clients send for it. */
  alias: z.string().max(400).nullish(),
  tags: z.array(z.string().max(200)).max(100).nullish(),
  cpuCount: z.number().positive().max(1_024).nullish(),
  memoryMB: mebibytes,
  minFreeDiskMb: mebibytes,
});

const requestedSchema = z.object({
  templateID: z.string(),
  buildID: z.string(),
  public: z.boolean(),
  names: z.array(z.string()),
  tags: z.array(z.string()),
  aliases: z.array(z.string()),
});

const logEntrySchema = z.object({
  timestamp: z.string(),
  level: z.enum(BUILD_LOG_LEVELS),
  message: z.string(),
  step: z.string().optional(),
});

const statusSchema = z.object({
  templateID: z.string(),
  buildID: z.string(),
  status: z.enum(["waiting", "building", "ready", "error"]),
  logEntries: z.array(logEntrySchema),
  logs: z.array(z.string()),
  reason: z.object({ message: z.string(), step: z.string(), logEntries: z.array(logEntrySchema) }).optional(),
});

const hash = z.string().regex(/^[0-9a-f]{64}$/, "must be a SHA-256, hexadecimal");

/** Lines in one answer, as E2B has them. */
const MAX_LOG_LINES = 100;

/** Ask for a build, send it files, start it and follow it, as E2B's clients do. */
export function addE2bBuildRoutes(deps: RouteDeps): void {
  const { templates, templateBuilds, templateFiles } = deps;

  const request = async (call: Call<unknown, z.output<typeof requestSchema>>): Promise<Answer> => {
    const { name, alias, tags, cpuCount, memoryMB, minFreeDiskMb } = call.body;
    const { template, build } = await templates.request(call.caller.scope, {
      name: name ?? alias ?? "",
      tags: tags ?? [],
      cpu: cpuCount ?? null,
      memoryMb: memoryMB ?? null,
      minFreeDiskMb: minFreeDiskMb ?? null,
    });
    call.note({ templateId: template.id, buildId: build.id, tenant: template.tenant });
    return {
      status: 202,
      body: {
        templateID: template.id,
        buildID: build.id,
        public: false,
        names: [template.name],
        tags: [...build.tags],
        aliases: [template.name],
      },
    };
  };
  for (const path of ["/v3/templates", "/v2/templates"])
    addE2bRoute(
      deps,
      {
        method: "post",
        path,
        summary: "Ask for a build of a template",
        description: "The template is made with its first build. The build waits until it is started.",
        scope: "sandbox:write",
        body: requestSchema,
        answers: { 202: { description: "The build", schema: requestedSchema } },
      },
      request,
    );

  addE2bRoute(
    deps,
    {
      method: "get",
      path: "/templates/{template_id}/files/{hash}",
      summary: "Get a URL to upload the files of a COPY to",
      description: "`present`: they are here already. The URL is good for an hour and needs no API key.",
      scope: "sandbox:write",
      answers: {
        201: {
          description: "Where to",
          schema: z.object({ present: z.boolean(), url: z.string() }),
        },
      },
    },
    async (call) => {
      const { scope } = call.caller;
      const template = await templates.require(scope, call.param("template_id"));
      const asked = hash.safeParse(call.param("hash"));
      if (!asked.success)
        throw new CodedError("invalid_request", "the hash of the files must be a SHA-256, hexadecimal");
      const present = await templateFiles.has(template, asked.data);
      const token = await templateFiles.grant(scope, template, asked.data);
      const url = new URL(`/templates/${template.id}/files/${asked.data}`, uploadOrigin(call.incoming));
      url.searchParams.set("token", token);
      return { status: 201, body: { present, url: url.href } };
    },
  );

  addE2bRoute(
    deps,
    {
      method: "put",
      path: "/templates/{template_id}/files/{hash}",
      summary: "Upload the files of a COPY",
      description: "A tar, with or without gzip, to the URL that was given out for it.",
      scope: null,
      query: z.object({ token: z.string().max(100) }),
      rawBody: "application/x-tar",
      answers: { 200: { description: "They are here", schema: z.object({}) } },
    },
    async (call) => {
      const grant = templateFiles.claim(call.query.token, call.param("hash"));
      const length = Number(call.incoming.headers["content-length"] ?? Number.NaN);
      if (!Number.isSafeInteger(length))
        throw new CodedError("invalid_request", "the upload has no Content-Length; send the archive's size");
      guardAgainstStall(call.incoming);
      await templateFiles.write(grant, call.incoming, length);
      return { status: 200, body: {} };
    },
  );

  addE2bRoute(
    deps,
    {
      method: "post",
      path: "/v2/templates/{template_id}/builds/{build_id}",
      summary: "Start a build",
      description:
        "It runs in a sandbox of its own, which then becomes the template; it counts against the limits of its tenant meanwhile.",
      scope: "sandbox:write",
      body: buildSpecSchema,
      maxBodyBytes: 8 * 1024 * 1024,
      answers: { 202: { description: "It has been started", schema: z.object({}) } },
    },
    async (call) => {
      const { scope, key } = call.caller;
      const build = await templates.requireBuild(scope, call.param("template_id"), call.param("build_id"));
      await templateBuilds.start(scope, key, build, call.body);
      call.note({ buildId: build.id, tenant: build.tenant });
      return { status: 202, body: {} };
    },
  );

  addE2bRoute(
    deps,
    {
      method: "get",
      path: "/templates/{template_id}/builds/{build_id}/status",
      summary: "Get the state of a build, and what it has said",
      scope: "sandbox:read",
      query: z.object({
        logsOffset: z.coerce.number().int().min(0).default(0),
        limit: z.coerce.number().int().min(0).max(MAX_LOG_LINES).default(MAX_LOG_LINES),
        level: z.enum(BUILD_LOG_LEVELS).default("debug"),
      }),
      answers: { 200: { description: "The build", schema: statusSchema } },
    },
    async (call) => {
      const { logsOffset: from, limit, level } = call.query;
      const build = await templates.requireBuild(
        call.caller.scope,
        call.param("template_id"),
        call.param("build_id"),
      );
      const entries = await templates.log(build, { from, limit, level });
      return {
        status: 200,
        body: {
          templateID: build.templateId,
          buildID: build.id,
          status: build.status,
          logEntries: entries.map(shownEntry),
          logs: entries.map(({ message }) => message),
          ...(build.failure === null ? {} : { reason: { ...build.failure, logEntries: [] } }),
        },
      };
    },
  );
}

function shownEntry({ at, level, message, step }: BuildLogEntry): z.input<typeof logEntrySchema> {
  return {
    timestamp: new Date(at).toISOString(),
    level,
    message,
    ...(step === null ? {} : { step }),
  };
}
