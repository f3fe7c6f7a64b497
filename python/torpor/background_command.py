"""A command that goes on without a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Union

from .exec_result import ExecResult
from .exec_stream import ExecStream

if TYPE_CHECKING:
    from ._sandbox_commands import SandboxCommands


class BackgroundCommand:
    """Made by `sandbox.start`."""

    def __init__(self, commands: "SandboxCommands", exec_id: str, pid: int) -> None:
        self.exec_id = exec_id
        self.pid = pid
        self._commands = commands

    def attach(
        self, *, max_output_bytes: Optional[int] = None, call_timeout_seconds: Optional[float] = None
    ) -> ExecStream[str]:
        """Its output from the start, as far as the sandbox still holds it (1 MiB per stream), and on.

        Leaving lets it run.
        """
        return self._commands.attach(
            self.exec_id,
            check=False,
            max_output_bytes=max_output_bytes,
            call_timeout_seconds=call_timeout_seconds,
        )

    def wait(self, *, check: bool = False, call_timeout_seconds: Optional[float] = None) -> ExecResult[str]:
        """Waits for its end. Raises CommandError with `check=True` and any end but exit code 0."""
        stream = self._commands.attach(
            self.exec_id,
            check=check,
            max_output_bytes=None,
            call_timeout_seconds=call_timeout_seconds,
        )
        return stream.result

    def write_stdin(
        self,
        data: Union[str, bytes],
        *,
        close: bool = False,
        call_timeout_seconds: Optional[float] = None,
    ) -> None:
        """Gives it input, at most 8 MiB at once, and with `close` no more after that; needs `keep_stdin_open`.

        Waits while the command does not read. A repeated request writes once.
        """
        self._commands.write_stdin(self.exec_id, data, close, call_timeout_seconds)

    def kill(self, signal: str = "SIGKILL", *, call_timeout_seconds: Optional[float] = None) -> bool:
        """Signals it and all it started. Returns False when it had ended."""
        return self._commands.kill(self.exec_id, signal, call_timeout_seconds)
