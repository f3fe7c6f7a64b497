export { type CliContext, processContext } from "./context.ts";
export { runCli } from "./run-cli.ts";
export { instancePaths } from "./instance/instance-paths.ts";
export { coveredNames } from "./tls/covered-names.ts";
export { ensureLocalCertificate } from "./tls/local-certificate.ts";
