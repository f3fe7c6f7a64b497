"""A JavaScript kernel: one Node process that lives through all executions, spoken to over pipes."""

import codecs
import json
import os
import select
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from ipykernel.kernelbase import Kernel

from torpor_kernel.call_environment import variables_of

READ_BYTES = 64 * 1024
SESSION = Path(__file__).resolve().parent.parent / "node" / "session.js"

Report = dict[str, Any]


class NodeKernel(Kernel):
    implementation = "torpor-javascript"
    implementation_version = "1"
    banner = "JavaScript"
    language_info = {"name": "javascript", "mimetype": "text/javascript", "file_extension": ".js"}

    # One to a kernel process; a class attribute since the thread that hears of restores has no kernel.
    node: "_Session | None" = None

    @classmethod
    def on_restore(cls, env: dict[str, str], generation: int) -> None:
        """Gives Node the sandbox's variables, and random numbers that its siblings in other copies do not have."""
        if cls.node is not None:
            cls.node.send({"restored": env})

    def do_execute(
        self, code: str, silent: bool, store_history: bool = True, user_expressions: Any = None, allow_stdin: bool = False, **_: Any
    ) -> dict[str, Any]:
        node = NodeKernel.node = NodeKernel.node or _Session()
        node.start(code, variables_of(self.get_parent()))
        while True:
            try:
                report = node.read_report(self._write)
                break
            except KeyboardInterrupt:
                pass  # Node is in this process's group and has had the signal itself
        if report is None:
            NodeKernel.node = None  # the next execution starts a new one
            return self._failed({"name": "SessionEnded", "value": f"Node ended with status {node.close()}; its variables are lost", "traceback": ""})
        if "error" in report:
            return self._failed(report["error"])
        if "text" in report:
            sys.stdout.flush()
            sys.stderr.flush()
            content = {"execution_count": self.execution_count, "data": {"text/plain": report["text"]}, "metadata": {}}
            self.send_response(self.iopub_socket, "execute_result", content)
        return {"status": "ok", "execution_count": self.execution_count, "payload": [], "user_expressions": {}}

    def set_parent(self, ident: Any, parent: dict[str, Any], channel: str = "shell") -> None:
        super().set_parent(ident, parent, channel)
        if channel == "shell":
            for stream in (sys.stdout, sys.stderr):
                stream.set_parent(parent)  # whose execution the output belongs to

    def _write(self, stream: str, text: str) -> None:
        (sys.stdout if stream == "stdout" else sys.stderr).write(text)

    def _failed(self, error: dict[str, str]) -> dict[str, Any]:
        sys.stdout.flush()
        sys.stderr.flush()
        content: dict[str, Any] = {"ename": error["name"], "evalue": error["value"], "traceback": [error["traceback"]] if error["traceback"] else []}
        self.send_response(self.iopub_socket, "error", content)
        return {"status": "error", "execution_count": self.execution_count, **content}

    def do_shutdown(self, restart: bool) -> dict[str, Any]:
        if NodeKernel.node is not None:
            NodeKernel.node.process.kill()
        return {"status": "ok", "restart": restart}


class _Session:
    """Node's process and its pipes; see session.js."""

    def __init__(self) -> None:
        requests_end, self._requests = os.pipe()
        self._reports, reports_end = os.pipe()
        # The child finds its ends under the numbers session.js knows, whatever they are here.
        command = f"exec 3<&{requests_end} 4>&{reports_end}; exec node {SESSION}"
        self.process = subprocess.Popen(
            ["bash", "-c", command], bufsize=0, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[requests_end, reports_end]
        )
        os.close(requests_end)
        os.close(reports_end)
        self._streams = {self.process.stdout.fileno(): "stdout", self.process.stderr.fileno(): "stderr"}
        self._decoders = {fd: codecs.getincrementaldecoder("utf-8")("replace") for fd in self._streams}
        self._waiting = [self._reports, *self._streams]
        self._sending = threading.Lock()
        self._id = 0
        self._unread = b""

    def start(self, code: str, env: dict[str, str]) -> None:
        self._id += 1
        self.send({"id": self._id, "code": code, "env": env})

    def send(self, request: dict[str, Any]) -> None:
        data = memoryview(json.dumps(request).encode() + b"\n")
        with self._sending:
            try:
                while data:
                    data = data[os.write(self._requests, data) :]
            except (BrokenPipeError, OSError):
                pass  # seen by the reader

    def read_report(self, write: Any) -> Report | None:
        """Passes output on until the execution reports; None when the process has ended instead. Goes on where an interrupt left it."""
        while True:
            ready, _, _ = select.select(self._waiting, [], [])
            for fd in (fd for fd in ready if fd in self._streams):
                self._read(fd, write)
            if self._reports not in ready:
                continue
            data = os.read(self._reports, READ_BYTES)
            if not data:
                self._drain(write)
                return None
            self._unread += data
            if not data.endswith(b"\n"):
                continue
            *lines, self._unread = self._unread.split(b"\n")
            for report in map(json.loads, lines):
                if report["id"] == self._id:
                    self._drain(write)
                    return report

    def _read(self, fd: int, write: Any) -> bool:
        data = os.read(fd, READ_BYTES)
        if not data:
            self._waiting.remove(fd)
            return False
        write(self._streams[fd], self._decoders[fd].decode(data))
        return True

    def _drain(self, write: Any) -> None:
        """Reads what was written before the report."""
        for fd in [fd for fd in self._waiting if fd in self._streams]:
            for _ in range(16):  # a pipe holds no more than this
                if not select.select([fd], [], [], 0)[0] or not self._read(fd, write):
                    break

    def close(self) -> int:
        """Waits for the ended process and gives its pipes back. Answers its exit status, negative for a signal."""
        status = self.process.wait()
        with self._sending:
            os.close(self._requests)
        os.close(self._reports)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        return status
