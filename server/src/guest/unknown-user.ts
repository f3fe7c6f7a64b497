/** The agent's words for a user whose name is in no /etc/passwd of the sandbox. */
const UNKNOWN_USER = /invalid username: '([^']*)'/;

/**
 * What to say when the user that the sandbox takes by default is the one that is not found; undefined when the message is of
 * something else, or when `asked` is the user that the caller named.
 */
export function unknownDefaultUser(message: string, asked?: string): string | undefined {
  const name = UNKNOWN_USER.exec(message)?.[1];
  if (name === undefined || name === asked) return undefined;
  return `the sandbox's default user '${name}' cannot be looked up: its /etc/passwd is damaged or leaves it out. Commands as root still run (user root; torpor exec -u root), to mend it`;
}
