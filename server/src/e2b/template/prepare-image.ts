import { CodedError, type ImageRequest, isErrorCode, type TemplateBuildEvent } from "@torpor/protocol";
import type { TenantScope } from "../../auth/tenant-scope.ts";
import type { HostClient } from "../../host/host-client.ts";

/**
 * Has a host make a template of a container image.
 *
 * @param onStage told what is being done, whenever that changes
 * @returns its name in a machine's spec
 * @throws CodedError of the host's
 */
export async function prepareImage(
  host: Pick<HostClient, "prepareImage">,
  scope: TenantScope,
  request: ImageRequest,
  options: { onStage: (label: string) => void; signal: AbortSignal },
): Promise<string> {
  const answer = await host.prepareImage(scope, request, options.signal);
  let stage = "";
  let rest = "";
  answer.setEncoding("utf8");
  for await (const text of answer as AsyncIterable<string>) {
    const lines = (rest + text).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      const event = JSON.parse(line) as TemplateBuildEvent;
      if (event.type === "done") return event.template.name;
      if (event.type === "error")
        throw new CodedError(isErrorCode(event.code) ? event.code : "internal", event.message);
      if (event.stage !== stage) options.onStage(event.label);
      stage = event.stage;
    }
  }
  throw new CodedError(
    "host_unavailable",
    `the host stopped telling about image '${request.image.slice(0, 200)}'; build it again`,
  );
}
