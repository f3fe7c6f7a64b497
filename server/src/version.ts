/** Version of the server, as `/healthz` and the reference show it. */
export const VERSION = "0.1.0";
