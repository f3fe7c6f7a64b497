import type { CallOptions } from "./call-options.ts";
import { queryString } from "./request-path.ts";
import type { Transport } from "./transport.ts";

export interface TerminalOptions extends Pick<CallOptions, "signal"> {
  /** Size; default 80 by 24. */
  cols?: number | undefined;
  rows?: number | undefined;
  /** Run by a shell; default a login shell. */
  cmd?: string | undefined;
  cwd?: string | undefined;
  user?: string | undefined;
}

/** What a WebSocket client needs: binary messages are bytes of the terminal, text messages JSON control. */
export interface TerminalRequest {
  /** `ws:` or `wss:`. */
  url: string;
  headers: Record<string, string>;
}

export async function terminalRequest(
  transport: Transport,
  sandboxPath: string,
  options: TerminalOptions,
): Promise<TerminalRequest> {
  options.signal?.throwIfAborted();
  const { cols = 80, rows = 24, cmd, cwd, user } = options;
  const url = transport.url.replace(/^http/, "ws");
  return {
    url: `${url}${sandboxPath}/pty${queryString({ cols, rows, cmd, cwd, user })}`,
    headers: await transport.authorization(),
  };
}
