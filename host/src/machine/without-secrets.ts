import { SecretValues } from "@torpor/base";

/**
 * Takes a machine's secrets out of what its guest says: a hook may print its environment. Undefined when it has none.
 */
export function withoutSecrets(values: readonly string[]): ((text: string) => string) | undefined {
  if (values.length === 0) return undefined;
  const secrets = new SecretValues();
  secrets.hold(values);
  return (text) => secrets.redact(text);
}
