"""A running command and what it says."""

from __future__ import annotations

import base64
import binascii
import codecs
from dataclasses import dataclass
from typing import Any, Callable, Dict, Generic, Iterator, Literal, Mapping, Optional, Union, cast

from ._closing import Closing
from ._error_answers import error_from_fields
from ._ndjson import read_lines
from ._transport import OpenAnswer
from .errors import ConnectionError, TorporError
from .exec_result import Command, ExecResult, Output, OutputCollector, check_command, exec_result

#: Output kept for `result` when the caller sets no `max_output_bytes`, bytes per stream: the server's default.
_DEFAULT_KEPT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class ExecStarted:
    """The command runs. The first event."""

    exec_id: str
    pid: int

    @property
    def type(self) -> Literal["start"]:
        return "start"


@dataclass(frozen=True)
class ExecOutput(Generic[Output]):
    """A piece of output. No character is cut in two."""

    #: `stdout` or `stderr`.
    stream: str
    data: Output
    #: Output before this that a replay no longer holds; 0 as a rule.
    dropped_bytes: int = 0

    @property
    def type(self) -> str:
        """The same as `stream`: `stdout` or `stderr`."""
        return self.stream


@dataclass(frozen=True)
class ExecEnded(Generic[Output]):
    """The command has ended. The last event."""

    result: ExecResult[Output]

    @property
    def type(self) -> Literal["end"]:
        return "end"


ExecEvent = Union[ExecStarted, ExecOutput[Output], ExecEnded[Output]]


class ExecStream(Closing, Generic[Output]):
    """A running command. Iterate it for the events as they come, or take `result`, or both.

    Leaving a `with` block, `close()` and losing the connection kill the command (after `attach` they only let go of
    it). The command waits while its output is not read.
    """

    def __init__(
        self,
        open_stream: Callable[[], OpenAnswer],
        *,
        cmd: Optional[Command],
        binary: bool,
        check: bool,
        max_output_bytes: Optional[int],
    ) -> None:
        """Made by `exec_stream` and `attach`. The request is sent here."""
        self._open = open_stream()
        self._cmd = cmd
        self._binary = binary
        self._check = check
        limit = _DEFAULT_KEPT_BYTES if max_output_bytes is None else max_output_bytes
        self._outputs = {"stdout": _Output(limit), "stderr": _Output(limit)}
        self._result: Optional[ExecResult[Output]] = None
        self._failure: Optional[TorporError] = None
        #: Known from the first event on.
        self.exec_id: Optional[str] = None
        self._events = self._read_events()

    def __iter__(self) -> Iterator[ExecEvent[Output]]:
        """The events not yet read; a second iteration goes on where the first stopped."""
        return self._events

    @property
    def result(self) -> ExecResult[Output]:
        """The finished command; reads what is still to come.

        Raises CommandError with `check=True` and any end but exit code 0, ConnectionError when the connection broke
        before the end.
        """
        if self._result is None and self._failure is None:
            for _event in self._events:
                pass
        if self._failure is not None:
            raise self._failure
        if self._result is None:
            raise TorporError(
                "this stream was closed before the command ended: it has no result", code="already_closed"
            )
        if self._check:
            check_command(self._cmd or self._result.exec_id, self._result)
        return self._result

    def close(self) -> None:
        """Closes the connection; also from another thread. Idempotent; nothing happens when the command has ended."""
        self._open.answer.close()

    def _read_events(self) -> Iterator[ExecEvent[Output]]:
        try:
            for line in read_lines(self._open, "a command's output"):
                # Reading on to the end of the answer keeps the connection for the next request.
                if self._result is None:
                    yield from self._take(line)
        except TorporError as error:
            if self._result is not None:
                return
            is_broken = isinstance(error, ConnectionError) and error.code == "connection_lost"
            self._failure = self._lost(error) if is_broken else error
            raise self._failure from error
        finally:
            # Of no effect after the end.
            self.close()
        if self._result is None:
            self._failure = self._lost(None)
            raise self._failure

    def _take(self, line: Dict[str, Any]) -> Iterator[ExecEvent[Output]]:
        kind = line.get("type")
        if kind == "start":
            self.exec_id = str(line.get("exec_id"))
            yield ExecStarted(self.exec_id, int(line.get("pid", 0)))
        elif kind in ("stdout", "stderr"):
            data = self._outputs[kind].take(line)
            dropped_bytes = line.get("dropped_bytes", 0)
            text = data if self._binary else self._outputs[kind].decode(data)
            # A chunk may hold no more than the beginning of a character.
            if text or dropped_bytes:
                yield ExecOutput(kind, cast(Output, text), dropped_bytes)
        elif kind == "end":
            if not self._binary:
                for name, output in self._outputs.items():
                    rest = output.decode(b"", is_last=True)
                    if rest:
                        yield ExecOutput(name, cast(Output, rest))
            self._result = self._finish(line)
            yield ExecEnded(self._result)
        elif kind == "error" or "error" in line:
            raise error_from_fields(line)

    def _finish(self, line: Mapping[str, Any]) -> ExecResult[Output]:
        stdout, stderr = self._outputs["stdout"].collector, self._outputs["stderr"].collector
        is_truncated = stdout.is_truncated or stderr.is_truncated
        if self._binary:
            return exec_result(
                line, cast(Output, stdout.as_bytes()), cast(Output, stderr.as_bytes()), is_truncated
            )
        return exec_result(line, cast(Output, stdout.as_text()), cast(Output, stderr.as_text()), is_truncated)

    def _lost(self, cause: Optional[TorporError]) -> ConnectionError:
        what = "a command was starting" if self.exec_id is None else f"command {self.exec_id} was running"
        told = cause.details.get("why") if cause is not None else None
        why = told or "the stream ended without saying how the command ended"
        return ConnectionError(
            f"the connection was lost while {what} ({why}): a command in the foreground is killed with its connection, "
            "one in the background can be attached to again by its exec_id",
            code="connection_lost",
            retryable=False,
            details={"exec_id": self.exec_id},
        )


class _Output:
    """One output stream: decoded as it comes, and kept up to a limit."""

    def __init__(self, limit_bytes: int) -> None:
        self.collector = OutputCollector(limit_bytes)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, line: Mapping[str, Any]) -> bytes:
        data = decode_base64(line.get("data", ""))
        self.collector.add(data, line.get("dropped_bytes", 0))
        return data

    def decode(self, data: bytes, *, is_last: bool = False) -> str:
        return self._decoder.decode(data, final=is_last)


def decode_base64(text: Any) -> bytes:
    """Raises TorporError `invalid_response` on what is no base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as cause:
        raise TorporError("the server sent output that is no base64", code="invalid_response") from cause
