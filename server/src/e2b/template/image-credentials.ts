import type { ImageCredentials } from "@torpor/protocol";
import { z } from "zod";
import { BuildFailed } from "./build-failed.ts";

// As E2B's clients send them; see TemplateBuildStartV2 in their API.
const registrySchema = z.discriminatedUnion("type", [
  z.object({ type: z.literal("registry"), username: z.string().min(1), password: z.string().min(1) }),
  z.object({ type: z.literal("gcp"), serviceAccountJson: z.string().min(1) }),
  z.object({ type: z.literal("aws") }),
]);

/** What a build logs in to a registry with; null for nothing. @throws BuildFailed for what cannot be used, saying nothing of it */
export function imageCredentials(registry: unknown): ImageCredentials | null {
  if (registry === undefined || registry === null) return null;
  const parsed = registrySchema.safeParse(registry);
  if (!parsed.success)
    throw new BuildFailed(
      "the registry's credentials are not usable: give a username and a password to fromImage, or a service account to fromGCPRegistry",
    );
  const given = parsed.data;
  if (given.type === "aws")
    throw new BuildFailed(
      "fromAWSRegistry is not there: this server asks AWS for no login. Give fromImage the username and the password that `aws ecr get-login-password` prints (username AWS)",
    );
  if (given.type === "registry") return { username: given.username, password: given.password };
  // The name under which registries of Google take a service account's key.
  return { username: "_json_key", password: given.serviceAccountJson };
}
