"""A Bash kernel: one shell that lives through all executions, spoken to over pipes."""

import codecs
import os
import secrets
import select
import signal
import subprocess
import sys
from typing import Any

from ipykernel.kernelbase import Kernel

from torpor_kernel.call_environment import variables_of

READ_BYTES = 64 * 1024
# Descriptors inside the shell: the commands it reads, and where it reports how they went.
REPORT_FD = 9
# With a prompt and rc files of its own an interactive shell would write into the user's output.
SHELL_SETUP = "PS1= PS2= PROMPT_COMMAND=; set +m +H +o history; shopt -u checkwinsize 2>/dev/null\n"


class BashKernel(Kernel):
    implementation = "torpor-bash"
    implementation_version = "1"
    banner = "Bash"
    language_info = {"name": "bash", "mimetype": "text/x-sh", "file_extension": ".sh"}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._shell: _Shell | None = None

    # What a restored copy must run before its next execution; set by the thread that hears of restores.
    after_restore = ""

    @classmethod
    def on_restore(cls, env: dict[str, str], generation: int) -> None:
        """Gives the shell the sandbox's variables and a `$RANDOM` that its siblings in other copies do not have."""
        exports = "".join(f"export {name}={quote(value)}; " for name, value in env.items() if name.isidentifier())
        cls.after_restore = f"RANDOM={secrets.randbits(31)}; {exports}"

    def do_execute(
        self, code: str, silent: bool, store_history: bool = True, user_expressions: Any = None, allow_stdin: bool = False, **_: Any
    ) -> dict[str, Any]:
        if self._shell is None:
            self._shell = _Shell()
        try:
            preparation, BashKernel.after_restore = BashKernel.after_restore, ""
            if preparation:
                self._shell.run(preparation, {}, self._write)
            status = self._shell.run(code, variables_of(self.get_parent()), self._write)
        except KeyboardInterrupt:
            status = 128 + signal.SIGINT
            self._shell.settle(self._write)
        if not self._shell.alive:
            self._shell.close()
            self._shell = None  # the next execution starts a new one
        if status < 0:
            return self._failed("ShellEnded", f"the shell was ended by signal {-status}; its variables are lost")
        if status != 0:
            return self._failed("ExitStatus", str(status))
        return {"status": "ok", "execution_count": self.execution_count, "payload": [], "user_expressions": {}}

    def set_parent(self, ident: Any, parent: dict[str, Any], channel: str = "shell") -> None:
        super().set_parent(ident, parent, channel)
        if channel == "shell":
            for stream in (sys.stdout, sys.stderr):
                stream.set_parent(parent)  # whose execution the output belongs to

    def _write(self, stream: str, text: str) -> None:
        (sys.stdout if stream == "stdout" else sys.stderr).write(text)

    def _failed(self, name: str, value: str) -> dict[str, Any]:
        sys.stdout.flush()
        sys.stderr.flush()
        content: dict[str, Any] = {"ename": name, "evalue": value, "traceback": []}
        self.send_response(self.iopub_socket, "error", content)
        return {"status": "error", "execution_count": self.execution_count, **content}

    def do_shutdown(self, restart: bool) -> dict[str, Any]:
        if self._shell is not None:
            self._shell.end()
        return {"status": "ok", "restart": restart}


class _Shell:
    """The shell's process and its pipes."""

    def __init__(self) -> None:
        report, report_end = os.pipe()
        # The child finds its end of the report pipe under a number that scripts do not use.
        command = f"exec {REPORT_FD}>&{report_end} {report_end}>&-; exec bash --noediting -i"
        self.process = subprocess.Popen(
            ["bash", "-c", command], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[report_end]
        )
        os.close(report_end)
        self.report = report
        self.alive = True
        self.streams = {self.process.stdout.fileno(): "stdout", self.process.stderr.fileno(): "stderr"}
        self.decoders = {fd: codecs.getincrementaldecoder("utf-8")("replace") for fd in self.streams}
        self._send(SHELL_SETUP)
        self.run(":", {}, lambda stream, text: None)  # swallows what an interactive shell says about having no terminal

    def run(self, code: str, variables: dict[str, str], write: Any) -> int:
        """Runs code to its end; answers its exit status, or the shell's own, negative for a signal, when that has ended."""
        token = secrets.token_hex(8)
        before = "".join(f"export {name}={quote(value)}; " for name, value in variables.items())
        # Put back by the shell itself, also when the code fails.
        saved = "".join(_save(name, token) for name in variables)
        after = "".join(_put_back(name, token) for name in variables)
        # The code is one argument, so that a syntax error in it ends it and nothing else; it reads nothing of ours.
        self._send(f"{saved}{before}eval {quote(code)} </dev/null {REPORT_FD}>&-\n__torpor_{token}=$?; {after}printf '%s %s\\n' {token} $__torpor_{token} >&{REPORT_FD}; unset __torpor_{token}\n")
        return self._read_until(token, write)

    def settle(self, write: Any) -> None:
        """
        After an interrupt: waits until the shell takes commands again. One that came between two commands stopped neither, so
        that another follows and meets this: it must not end what the execution's reply waits for.
        """
        while True:
            try:
                self.run(":", {}, write)
                return
            except KeyboardInterrupt:
                continue

    def end(self) -> None:
        self.process.kill()

    def close(self) -> None:
        """Gives the pipes of an ended shell back."""
        os.close(self.report)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def _send(self, text: str) -> None:
        view = memoryview(text.encode("utf-8", "replace"))
        assert self.process.stdin is not None
        try:
            while view:
                view = view[self.process.stdin.write(view) or 0 :]
        except BrokenPipeError:
            pass  # seen by the reader

    def _read_until(self, token: str, write: Any) -> int:
        report = b""
        waiting = [self.report, *self.streams]
        while True:
            ready, _, _ = select.select(waiting, [], [])
            for fd in (fd for fd in ready if fd in self.streams):
                data = os.read(fd, READ_BYTES)
                if data:
                    write(self.streams[fd], self.decoders[fd].decode(data))
                else:
                    waiting.remove(fd)
            if self.report not in ready:
                continue
            data = os.read(self.report, READ_BYTES)
            report += data
            if not data:
                self._drain(write)
                self.alive = False
                return self.process.wait()
            # An interrupted execution reports too, when the next one is already waited for.
            for line in report.decode("utf-8", "replace").splitlines():
                name, _, status = line.partition(" ")
                if name == token and status.isdigit():
                    self._drain(write)
                    return int(status)

    def _drain(self, write: Any) -> None:
        """Reads what was written before the report; what goes on in the background is left for later."""
        for fd, stream in self.streams.items():
            for _ in range(16):  # a pipe holds no more than this
                if not select.select([fd], [], [], 0)[0]:
                    break
                data = os.read(fd, READ_BYTES)
                if not data:
                    break
                write(stream, self.decoders[fd].decode(data))


def quote(text: str) -> str:
    """One word of shell code, whatever it holds; a NUL, which no shell variable can hold, is left out."""
    return "'" + text.replace("\0", "").replace("'", "'\\''") + "'"


def _save(name: str, token: str) -> str:
    return f"if [ -n \"${{{name}+x}}\" ]; then __torpor_{token}_{name}=${name}; fi; "


def _put_back(name: str, token: str) -> str:
    saved = f"__torpor_{token}_{name}"
    return f"if [ -n \"${{{saved}+x}}\" ]; then export {name}=\"${saved}\"; unset {saved}; else unset {name}; fi; "
