import type { Caller } from "./authenticator.ts";
import type { OperatorScope } from "./tenant-scope.ts";

/** The operator's scope on a route that is the operator's alone. @throws Error on a route whose scope is another */
export function operatorOf({ operator }: Caller): OperatorScope {
  if (operator === undefined) throw new Error("a route for the operator alone was reached by another");
  return operator;
}
