import { access, readFile, rm, writeFile } from "node:fs/promises";

const SETTING = "/proc/sys/net/ipv4/ip_forward";
/**
 * Says that Torpor turned forwarding on. One file for all instances of the machine, since the setting is one: the last
 * to leave turns it off again. Gone after a reboot, as the setting is.
 */
export const IP_FORWARD_MARK = "/run/torpor-ip-forward";

/** Lets the machine route. The mark comes first, so that `kill -9` in between cannot make it forget. */
export async function turnForwardingOn(): Promise<void> {
  if ((await readFile(SETTING, "utf8")).trim() === "1") return;
  await writeFile(IP_FORWARD_MARK, "turned on by Torpor\n", { mode: 0o600 });
  await writeFile(SETTING, "1");
}

/** Puts the setting back as it was found, if it was Torpor that changed it. For the last instance to call. */
export async function turnForwardingBack(): Promise<void> {
  const ours = await access(IP_FORWARD_MARK).then(
    () => true,
    () => false,
  );
  if (!ours) return;
  await writeFile(SETTING, "0");
  await rm(IP_FORWARD_MARK, { force: true });
}
