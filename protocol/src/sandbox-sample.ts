import { z } from "zod";

/** What a sandbox used at one moment. */
export const sandboxSampleSchema = z.object({
  at: z.string(),
  cpu_used_percent: z.number().describe("Since the sample before; 100: all the CPU it may have."),
  memory_used_bytes: z.number().describe("Without what can be let go of; its runtime's own is in it."),
  memory_cache_bytes: z.number().describe("Pages of files, which can be let go of."),
  disk_used_bytes: z.number().describe("What its changes to the file system take on the host."),
});
export type SandboxSample = z.infer<typeof sandboxSampleSchema>;
