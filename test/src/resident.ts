import { eventually } from "./eventually.ts";
import type { HostClient } from "./host-client.ts";

/**
 * A program that holds state of every kind that lives in a process: a counter, memory, a loopback TCP connection in use
 * and an SQLite database being written. It says every few milliseconds how it is, in a file.
 */
const PROGRAM = `
import hashlib, json, os, socket, sqlite3, threading, time
BLOCK = os.urandom(20_000_000)
state = {"pid": os.getpid(), "hash": hashlib.sha256(BLOCK).hexdigest(), "count": 0, "pings": 0, "rows": 0, "failed": None}
server = socket.create_server(("127.0.0.1", 0))
def serve():
    peer, _ = server.accept()
    while True:
        peer.sendall(peer.recv(8))
threading.Thread(target=serve, daemon=True).start()
client = socket.create_connection(server.getsockname())
client.settimeout(20)
database = sqlite3.connect("/workspace/rows.db", isolation_level=None)
database.execute("PRAGMA journal_mode=WAL")
database.execute("CREATE TABLE rows (n INTEGER PRIMARY KEY)")
while state["failed"] is None:
    try:
        state["count"] += 1
        ping = state["count"].to_bytes(8, "big")
        client.sendall(ping)
        if client.recv(8) != ping: raise RuntimeError("another answer than was sent")
        state["pings"] += 1
        database.execute("INSERT INTO rows VALUES (?)", (state["count"],))
        state["rows"] += 1
        if state["count"] % 20 == 0: state["hash"] = hashlib.sha256(BLOCK).hexdigest()
    except Exception as error:
        state["failed"] = repr(error)
    with open("/workspace/resident.new", "w") as file: json.dump(state, file)
    os.replace("/workspace/resident.new", "/workspace/resident.json")
    time.sleep(0.02)
`;

export interface ResidentState {
  pid: number;
  /** Of 20 MB of random memory, computed anew now and then. */
  hash: string;
  count: number;
  /** Round trips over the one loopback connection. */
  pings: number;
  rows: number;
  /** What went wrong, if anything ever did. */
  failed: string | null;
}

/** Starts the program in a machine, with nobody attached to it, and waits until it is well under way. */
export async function startResident(host: HostClient, machineId: string): Promise<ResidentState> {
  await host.output(
    machineId,
    `cat > /workspace/resident.py <<'PROGRAM'\n${PROGRAM}\nPROGRAM\nsetsid python3 /workspace/resident.py > /workspace/resident.log 2>&1 < /dev/null & disown`,
  );
  return eventually("the resident program to be under way", async () => {
    const state = await residentState(host, machineId);
    return state.count > 10 ? state : undefined;
  });
}

export async function residentState(host: HostClient, machineId: string): Promise<ResidentState> {
  return JSON.parse(await host.output(machineId, "cat /workspace/resident.json")) as ResidentState;
}

/** What SQLite says of the database while it is being written: integrity, and whether no row is missing. */
export async function checkRows(host: HostClient, machineId: string): Promise<string> {
  return host.output(
    machineId,
    `python3 -c 'import sqlite3; d = sqlite3.connect("/workspace/rows.db"); print(*d.execute("PRAGMA integrity_check").fetchone(), *d.execute("SELECT max(n) = count(*) FROM rows").fetchone())'`,
  );
}
