import { LIMITS } from "@torpor/protocol";
import { z } from "zod";

const text = z.string().max(256 * 1024);

/** Body of the request that starts a build. Fields that are not known are let pass: clients add some. */
export const buildSpecSchema = z.object({
  fromImage: z.string().max(1024).nullish(),
  fromTemplate: z.string().max(256).nullish(),
  fromImageRegistry: z
    .unknown()
    .optional()
    .describe(
      "Name and password for the image's registry, or a service account; kept for as long as the build takes.",
    ),
  steps: z
    .array(
      z.object({
        type: z.string().max(32),
        args: z.array(text).max(1000).nullish(),
        filesHash: z
          .string()
          .regex(/^[0-9a-f]{64}$/, "must be a SHA-256, hexadecimal")
          .nullish(),
        force: z.boolean().nullish(),
      }),
    )
    .max(1000)
    .nullish(),
  startCmd: z.string().max(LIMITS.maxStartCommandLength).nullish(),
  readyCmd: text.nullish(),
  force: z
    .boolean()
    .nullish()
    .describe("Nothing is cached but uploads, so that every build runs every step."),
});
export type BuildSpec = z.output<typeof buildSpecSchema>;
export type BuildStep = NonNullable<BuildSpec["steps"]>[number];
