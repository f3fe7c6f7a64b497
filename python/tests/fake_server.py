"""A real HTTP server that speaks the wire's shapes; what it does with each request is the test's to say."""

from __future__ import annotations

import base64
import json
import re
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Type
from urllib.parse import parse_qs, urlsplit

from torpor import Torpor

SANDBOX_ID = "sabcdefghijkmnpqrstuvwxyz2"
API_KEY = "tp_" + "k" * 40


class Call(BaseHTTPRequestHandler):
    """One request, and the means to answer it."""

    protocol_version = "HTTP/1.1"
    # Small writes must not wait for each other, as they do not on a real server.
    disable_nagle_algorithm = True
    server: "_HttpServer"

    @property
    def path_only(self) -> str:
        return urlsplit(self.path).path

    @property
    def query(self) -> Dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}

    def body(self) -> bytes:
        """All of the body, however it is framed."""
        if self._body is None:
            self._body = self.record["body"] = b"".join(self.body_chunks())
        return self._body

    def body_chunks(self) -> Any:
        if self.headers.get("transfer-encoding") == "chunked":
            while True:
                size = int(self.rfile.readline(), 16)
                data = self.rfile.read(size)
                self.rfile.readline()
                if size == 0:
                    return
                yield data
        left = int(self.headers.get("content-length") or 0)
        while left > 0:
            data = self.rfile.read(min(left, 256 * 1024))
            if not data:
                raise ConnectionError("the client left in the middle of a body")
            left -= len(data)
            yield data

    def json(self) -> Dict[str, Any]:
        return json.loads(self.body())

    def send(self, status: int, data: bytes, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        self.send_header("x-request-id", f"req-{self.number}")
        self.send_header("content-length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def send_json(self, status: int, value: Any, headers: Mapping[str, str] = {}) -> None:
        self.send(status, json.dumps(value).encode(), {"content-type": "application/json", **headers})

    def send_failure(self, status: int, code: str, message: str = "it failed", **more: Any) -> None:
        headers = more.pop("headers", {})
        error = {
            "code": code,
            "message": message,
            "details": {},
            "request_id": "req-in-body",
            "retryable": False,
        }
        self.send_json(status, {"error": {**error, **more}}, headers)

    def begin_chunked(self, content_type: str = "application/x-ndjson") -> None:
        self.send_response(200)
        self.send_header("content-type", content_type)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def line(self, value: Any) -> None:
        self.chunk(json.dumps(value).encode() + b"\n")

    def end_chunked(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def cut(self) -> None:
        """Breaks the connection off."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def wait_for_client_to_leave(self, timeout_seconds: float = 10) -> bool:
        self.connection.settimeout(timeout_seconds)
        try:
            return self.rfile.read(1) == b""
        except ConnectionError:
            return True
        except socket.timeout:
            return False

    def handle_any(self) -> None:
        self._body: Optional[bytes] = None
        fake = self.server.fake
        with fake.lock:
            self.record = self._record()
            fake.calls.append(self.record)
            self.number = len(fake.calls)
            found = next(
                (
                    act
                    for method, pattern, act in fake.routes
                    if method == self.command and pattern.fullmatch(self.path_only)
                ),
                None,
            )
        try:
            if found is None:
                self.body()
                self.send_failure(404, "not_found", f"no route {self.command} {self.path}")
            else:
                found(self)
        except (ConnectionError, ValueError):
            # The client left; a real server would be used to it.
            self.close_connection = True

    def _record(self) -> Dict[str, Any]:
        return {
            "method": self.command,
            "path": self.path_only,
            "query": self.query,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "connection": self.client_address,
        }

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

    def log_message(self, format: str, *args: Any) -> None:
        pass


Handler = Callable[[Call], None]


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    # A test's clients come all at once.
    request_queue_size = 256
    fake: "FakeServer"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class FakeServer:
    def __init__(self, tls: Optional[ssl.SSLContext] = None, *, port: int = 0) -> None:
        self._scheme = "http" if tls is None else "https"
        self.calls: List[Dict[str, Any]] = []
        self.routes: List[Tuple[str, "re.Pattern[str]", Handler]] = []
        self.lock = threading.Lock()
        self._http = _HttpServer(("127.0.0.1", port), Call)
        self._http.fake = self
        if tls is not None:
            self._http.socket = tls.wrap_socket(
                self._http.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self._clients: List[Torpor] = []

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._http.server_address[1]}"

    @property
    def environment(self) -> Dict[str, str]:
        return {"TORPOR_URL": self.url, "TORPOR_API_KEY": API_KEY}

    def client(self, **options: Any) -> Torpor:
        client = Torpor(self.url, API_KEY, **options)
        self._clients.append(client)
        return client

    def on(self, method: str, path: str, handler: Handler) -> "FakeServer":
        """`{id}` stands for the one sandbox, `*` for any segment. The latest route for a request wins."""
        pattern = re.escape(path.replace("{id}", SANDBOX_ID)).replace(r"\*", "[^/]+")
        self.routes.insert(0, (method, re.compile(pattern), handler))
        return self

    def on_json(self, method: str, path: str, status: int, value: Any) -> "FakeServer":
        def answer(call: Call) -> None:
            call.body()
            call.send_json(status, value)

        return self.on(method, path, answer)

    def with_sandbox(self, **more: Any) -> "FakeServer":
        """Answers create, get and delete of the one sandbox."""
        record = sandbox_wire(**more)

        def destroy(call: Call) -> None:
            record.update(state="destroyed", reason="user", ended_at="2026-11-29T16:01:00.000Z")
            call.send_json(200, record)

        self.on_json("POST", "/v1/sandboxes", 201, record)
        self.on("GET", "/v1/sandboxes/{id}", lambda call: call.send_json(200, record))
        return self.on("DELETE", "/v1/sandboxes/{id}", destroy)

    def calls_to(self, method: str, suffix: str) -> List[Dict[str, Any]]:
        with self.lock:
            return [call for call in self.calls if call["method"] == method and call["path"].endswith(suffix)]

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(10)

    def __enter__(self) -> "FakeServer":
        return self

    def __exit__(self, exc_type: Optional[Type[BaseException]], *rest: Any) -> None:
        self.close()


def sandbox_wire(**more: Any) -> Dict[str, Any]:
    return {
        "id": SANDBOX_ID,
        "name": None,
        "state": "running",
        "reason": None,
        "template": "code-interpreter",
        "driver": "gvisor",
        "tenant": "default",
        "persistent": False,
        "metadata": {},
        "cpu": 1,
        "memory_mb": 1024,
        "disk_mb": 4096,
        "network": "internet",
        "on_expire": "destroy",
        "generation": 1,
        "host": "host-1",
        "created_at": "2026-11-29T16:00:00.000Z",
        "started_at": "2026-11-29T16:00:00.050Z",
        "expires_at": "2026-11-29T16:05:00.000Z",
        "idle_at": None,
        "last_activity_at": "2026-11-29T16:00:00.050Z",
        "ended_at": None,
        "attestation": {
            "generation": 1,
            "steps": [{"name": "entropy", "outcome": "done", "duration_us": 120}],
            "clock_offset_ms": 0.2,
            "complete": True,
        },
        **more,
    }


def exec_wire(**more: Any) -> Dict[str, Any]:
    return {
        "exec_id": "x1",
        "exit_code": 0,
        "signal": None,
        "outcome": "exited",
        "stdout": "",
        "stderr": "",
        "encoding": "utf8",
        "truncated": False,
        "stdout_bytes": 0,
        "stderr_bytes": 0,
        "duration_ms": 1.5,
        **more,
    }


def exec_end_line(**more: Any) -> Dict[str, Any]:
    wire = exec_wire(**more)
    for name in ("stdout", "stderr", "encoding"):
        del wire[name]
    return {"type": "end", **wire}


def file_entry_wire(**more: Any) -> Dict[str, Any]:
    return {
        "name": "a.txt",
        "path": "/workspace/a.txt",
        "type": "file",
        "size": 3,
        "mode": 420,
        "permissions": "-rw-r--r--",
        "owner": "user",
        "group": "user",
        "modified_at": "2026-11-29T16:00:00.123456789Z",
        "symlink_target": None,
        **more,
    }


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
