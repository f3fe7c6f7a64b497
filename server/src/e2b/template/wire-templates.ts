import { Scope } from "@torpor/base";
import { BuildLogStore } from "../../store/build-log-store.ts";
import type { Database } from "../../store/open-database.ts";
import { TemplateStore } from "../../store/template-store.ts";
import { Builds, type BuildsOptions } from "./builds.ts";
import { TemplateFiles } from "./template-files.ts";
import { Templates } from "./templates.ts";

export interface WireTemplatesOptions extends Omit<BuildsOptions, "store" | "logStore" | "files"> {
  database: Database;
  /** Where uploads are kept, see {@link TemplateFiles}. */
  uploadsDirectory: string | undefined;
}

export interface WiredTemplates {
  templates: Templates;
  templateBuilds: Builds;
  templateFiles: TemplateFiles;
  /** Stops what is being built. */
  close(): Promise<void>;
}

/** Puts together what builds templates. */
export function wireTemplates({
  database,
  uploadsDirectory,
  ...options
}: WireTemplatesOptions): WiredTemplates {
  const scope = new Scope();
  const { clock, snapshotStore, placement } = options;
  const store = new TemplateStore(database);
  const logStore = new BuildLogStore(database);
  const templateFiles = new TemplateFiles({ directory: uploadsDirectory, clock });
  scope.defer(() => templateFiles.close());
  const templateBuilds = new Builds({ ...options, store, logStore, files: templateFiles });
  scope.defer(() => templateBuilds.close());
  const templates = new Templates({
    store,
    snapshotStore,
    placement,
    logStore,
    builds: templateBuilds,
    clock,
  });
  return { templates, templateBuilds, templateFiles, close: () => scope.close() };
}
