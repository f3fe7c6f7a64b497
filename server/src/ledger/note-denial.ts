import type { CodedError } from "@torpor/protocol";
import type { OwnedKind } from "../store/owner-store.ts";
import type { DeniedKey, DenialLog } from "./denial-log.ts";

/** What an authenticated request asked for. */
export interface Asked {
  key: DeniedKey;
  /** Method and path as the reference has them. */
  route: string;
  /** The variable parts of its path. */
  names: Readonly<Record<string, string>>;
  body: unknown;
}

/** Parts of a path that name things with an owner. */
const OWNED: Readonly<Record<string, OwnedKind>> = {
  id: "sandbox",
  snapshot_id: "snapshot",
  key_id: "key",
  webhook_id: "webhook",
  url_id: "preview_url",
};
const MISSED_CODES = ["sandbox_not_found", "snapshot_not_found", "not_found"];
/** Longer than any id of ours. */
const MAX_ID_CHARACTERS = 80;

/** Tells the ledger of an answer that refuses the caller something of somebody else. */
export function noteDenial(
  denials: DenialLog,
  { key, route, names, body }: Asked,
  { code }: CodedError,
): void {
  if (code === "permission_denied") denials.note(key, route, "permission_denied");
  if (!MISSED_CODES.includes(code)) return;
  for (const [name, kind] of Object.entries(OWNED)) {
    const id = names[name];
    if (id !== undefined && id.length <= MAX_ID_CHARACTERS) denials.noteMissed(key, route, kind, id);
  }
  const from =
    typeof body === "object" && body !== null && "from_snapshot" in body ? body.from_snapshot : null;
  if (typeof from === "string") denials.noteMissed(key, route, "snapshot", from);
}
