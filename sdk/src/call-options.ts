/** Taken by every call that reaches the server. */
export interface CallOptions {
  /**
   * Stops the call, its retries and its streams; the promise rejects with the signal's reason. Aborting an exec kills
   * the command. Aborting a create destroys the sandbox if it was made.
   */
  signal?: AbortSignal | undefined;
  /**
   * Longest time for the whole call, retries included, milliseconds; 0 for no limit. Default: the client's
   * `timeoutMs`. Transfers of file content take it as the longest time without progress. Long waits have their own
   * default: `exec` its `timeoutSeconds` plus 30 s, `create` 120 s, template builds none.
   */
  timeoutMs?: number | undefined;
}

/** A call that can be given a name of its own, so that it takes effect once even over several processes. */
export interface KeyedCallOptions extends CallOptions {
  /**
   * Same key and same arguments within 24 hours: the same answer, without acting again. Default: a random key for
   * each call, which covers the client's own retries.
   */
  idempotencyKey?: string | undefined;
}
