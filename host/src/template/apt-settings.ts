import { run } from "@torpor/base";

/** How this machine's apt talks to its archives, as far as a template build needs it. */
export interface AptSettings {
  /** apt options for the build only: proxies, which may hold passwords and may not be reachable from a sandbox. */
  buildOnly: string[];
  /** apt options for the build and for the template: whether an archive's dates are checked. */
  lasting: string[];
}

/** Reads the settings with `apt-config`; a machine without apt has none. */
export async function readAptSettings(): Promise<AptSettings> {
  const settings: AptSettings = { buildOnly: [], lasting: [] };
  let dump: string;
  try {
    dump = (await run(["apt-config", "dump", "--format", "%f\t%v%n", "Acquire"])).stdout;
  } catch {
    return settings;
  }
  for (const line of dump.split("\n")) {
    const [name, value] = line.split("\t");
    if (name === undefined || value === undefined || value === "" || /["\n;]/.test(name + value)) continue;
    const option = `${name} "${value}";`;
    if (/^Acquire::(Check-Valid-Until|Check-Date)$/i.test(name)) settings.lasting.push(option);
    if (/^Acquire::https?::(Proxy|Timeout)(::[^:]+)?$/i.test(name)) settings.buildOnly.push(option);
  }
  return settings;
}
