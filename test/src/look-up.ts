/** Asks a name server as any program may: with its own hands, whatever resolv.conf says. */
const LOOK_UP = `
import os, socket, struct
name, server, over, kind = os.environ["NAME"], os.environ["SERVER"], os.environ["OVER"], int(os.environ["KIND"])
question = struct.pack(">HHHHHH", 4711, 0x100, 1, 0, 0, 0)
question += b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\\0" + struct.pack(">HH", kind, 1)
try:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM if over == "udp" else socket.SOCK_STREAM) as s:
        s.settimeout(15)
        s.connect((server, 53))
        s.sendall(question if over == "udp" else struct.pack(">H", len(question)) + question)
        answer = s.recv(4096)
        if over == "tcp":
            while len(answer) < 2 or len(answer) < 2 + struct.unpack(">H", answer[:2])[0]: answer += s.recv(4096)
            answer = answer[2:]
    at, found = len(question), []
    for _ in range(struct.unpack(">H", answer[6:8])[0]):
        found.append(".".join(map(str, answer[at + 12:at + 16])))
        at += 16
    print(" ".join([str(answer[3] & 15), *found]))
except OSError as error:
    print("failed: " + type(error).__name__)
`;

export interface LookUp {
  /** Default: the guest's gateway, as its resolv.conf says. */
  server?: string;
  /** Default `udp`. */
  over?: "udp" | "tcp";
  /** Type of record; default 1, addresses. */
  type?: number;
}

/** Looks a name up from inside a sandbox. @returns the response code and the addresses, such as `0 198.51.100.10` */
export function lookUp(
  guest: { output: (command: string, options: { env: Record<string, string> }) => Promise<string> },
  name: string,
  { server = "10.200.0.1", over = "udp", type = 1 }: LookUp = {},
): Promise<string> {
  const env = { NAME: name, SERVER: server, OVER: over, KIND: String(type) };
  return guest.output(`python3 -c '${LOOK_UP}'`, { env });
}
