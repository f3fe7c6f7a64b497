import { CodedError } from "@torpor/protocol";
import type { Caller } from "./authenticator.ts";
import { OPERATOR_ACCOUNT } from "./bootstrap-key.ts";
import { ServerScope } from "./tenant-scope.ts";

/**
 * Lets pass keys of the operator's account that are bound to no tenant: for what concerns every account at once. A
 * collector of metrics needs no more than such a key with `sandbox:read`.
 *
 * @param what the thing asked for, as a plural noun
 * @throws CodedError permission_denied
 */
export function requireWholeServer({ key, scope }: Caller, what: string): ServerScope {
  if (scope.account === OPERATOR_ACCOUNT && scope.tenant === null) return ServerScope.fromVerifiedKey(key.id);
  const bounds = scope.tenant === null ? `of account ${scope.account}` : `bound to tenant ${scope.tenant}`;
  throw new CodedError(
    "permission_denied",
    `this API key is ${bounds}, and ${what} are the whole server's; use a key of account ${OPERATOR_ACCOUNT} that is bound to no tenant`,
  );
}
