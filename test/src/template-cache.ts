import { Instance } from "./instance.ts";

/**
 * Builds the named templates into the cache, once and side by side, by the host's own build route; what is built already for this
 * recipe, guest agent and runtime is only looked up.
 */
export async function ensureTemplates(
  names: readonly string[],
  say: (line: string) => void = () => {},
): Promise<void> {
  const instance = await Instance.start();
  try {
    await Promise.all(
      names.map((name) => instance.host.buildTemplate(name, (stage) => say(`template ${name}: ${stage}`))),
    );
  } finally {
    await instance.stop();
    await instance.remove();
  }
}

/** Whether the cache is taken as it is: `TORPOR_TEST_TEMPLATES_FIXED=1`, for work on anything but templates. */
export function templatesAreFixed(): boolean {
  return process.env.TORPOR_TEST_TEMPLATES_FIXED === "1";
}
