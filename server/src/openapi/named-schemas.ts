import {
  accountSchema,
  attestationSchema,
  execResultSchema,
  fileEntrySchema,
  keySchema,
  previewUrlSchema,
  processSchema,
  lifecycleSchema,
  networkRulesSchema,
  sandboxSchema,
  snapshotSchema,
  templateSchema,
  webhookSchema,
} from "@torpor/protocol";
import type { z } from "zod";
import { errorSchema } from "../http/error-schema.ts";

/** Schemas that the reference gives a name and writes once. Inner ones come before those that hold them. */
export const NAMED_SCHEMAS: Readonly<Record<string, z.ZodType>> = {
  Attestation: attestationSchema,
  NetworkRules: networkRulesSchema,
  Sandbox: sandboxSchema,
  Lifecycle: lifecycleSchema,
  Snapshot: snapshotSchema,
  ExecResult: execResultSchema,
  Process: processSchema,
  FileEntry: fileEntrySchema,
  PreviewUrl: previewUrlSchema,
  Template: templateSchema,
  Webhook: webhookSchema,
  Account: accountSchema,
  ApiKey: keySchema,
  Error: errorSchema,
};

/**
 * The document with a reference wherever a named schema is written out: a fifth of the size, and generators of clients
 * get types with names.
 */
export function withReferences(document: unknown, components: Readonly<Record<string, unknown>>): unknown {
  const names = new Map(Object.entries(components).map(([name, schema]) => [JSON.stringify(schema), name]));
  const visit = (value: unknown, isOwnDefinition: boolean): unknown => {
    if (Array.isArray(value)) return value.map((item) => visit(item, false));
    if (typeof value !== "object" || value === null) return value;
    const name = isOwnDefinition ? undefined : names.get(JSON.stringify(value));
    if (name !== undefined) return { $ref: `#/components/schemas/${name}` };
    return Object.fromEntries(
      Object.entries(value).map(([key, item]) => [
        key,
        visit(item, Object.hasOwn(components, key) && components[key] === item),
      ]),
    );
  };
  return visit(document, false);
}
