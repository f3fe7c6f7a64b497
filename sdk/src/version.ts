/** Version of this client, as in its package.json. Sent in `user-agent`. */
export const VERSION = "0.1.0";
