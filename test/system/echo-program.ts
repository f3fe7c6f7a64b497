/** For a program with a `server` and `crypto`: an echo over WebSocket made by hand, since the template has no package for it. */
export const WEBSOCKET_ECHO = `
server.on("upgrade", (request, socket) => {
  const accept = crypto.createHash("sha1").update(request.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest("base64");
  socket.write("HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: " + accept + "\\r\\n\\r\\n");
  socket.on("error", () => {});
  socket.on("data", (frame) => {
    const length = frame[1] & 127, mask = frame.subarray(2, 6);
    if ((frame[0] & 15) === 8) return socket.end();
    const text = Buffer.from(frame.subarray(6, 6 + length).map((byte, index) => byte ^ mask[index % 4]));
    socket.write(Buffer.concat([Buffer.from([129, text.length]), text]));
  });
});
`;

/** For Node in a sandbox, on port 8000: echoes what it was asked, streams without end at /stream, and speaks WebSocket. */
export const ECHO_PROGRAM = `
const http = require("node:http"), crypto = require("node:crypto");
const server = http.createServer((request, response) => {
  if (request.url === "/stream") { response.write("first\\n"); setInterval(() => response.write("more\\n"), 100); return; }
  const hash = crypto.createHash("sha256");
  request.on("data", (chunk) => hash.update(chunk));
  request.on("end", () => response.end(JSON.stringify({ url: request.url, headers: request.headers, hash: hash.digest("hex") })));
});
${WEBSOCKET_ECHO}server.listen(8000, "0.0.0.0");
`;
