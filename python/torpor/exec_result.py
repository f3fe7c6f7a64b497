"""How a command ended."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Any, Generic, List, Mapping, Optional, Sequence, TypeVar, Union

from .errors import CommandError

#: A command: text is run by a login shell (`bash -l -c`), a sequence is run as it is, without a shell.
Command = Union[str, Sequence[str]]

Output = TypeVar("Output", bound=Union[str, bytes])

#: How much of the command and of its error output an error quotes.
_QUOTED_COMMAND_CHARACTERS = 200
_QUOTED_STDERR_LINES = 5
_QUOTED_STDERR_CHARACTERS = 1000


@dataclass(frozen=True)
class ExecResult(Generic[Output]):
    """A finished command. Output is text, or bytes with `binary=True`."""

    #: Its first `max_output_bytes`. Text has invalid UTF-8 replaced by U+FFFD.
    stdout: Output
    stderr: Output
    #: None unless the command exited by itself.
    exit_code: Optional[int]
    #: `exited`, `signalled`, `timed_out` (ended at its `timeout_seconds`), `oom` (the sandbox ran out of memory), or
    #: `lost` (the sandbox or its host ended before the outcome was known).
    outcome: str
    #: `SIGKILL`, `SIGTERM`, ... or None.
    signal: Optional[str]
    #: Whether output was left out.
    truncated: bool
    duration_ms: float
    #: Bytes the command wrote, kept or not.
    stdout_bytes: int
    stderr_bytes: int
    exec_id: str
    #: Why, when the outcome is `lost` or `oom`.
    message: Optional[str]


def exec_result(
    wire: Mapping[str, Any], stdout: Output, stderr: Output, is_truncated: bool = False
) -> ExecResult[Output]:
    """From an answer or the last line of a stream; `is_truncated` when the client itself left output out."""
    return ExecResult(
        stdout=stdout,
        stderr=stderr,
        exit_code=wire.get("exit_code"),
        outcome=str(wire.get("outcome", "lost")),
        signal=wire.get("signal"),
        truncated=bool(wire.get("truncated")) or is_truncated,
        duration_ms=wire.get("duration_ms", 0),
        stdout_bytes=wire.get("stdout_bytes", 0),
        stderr_bytes=wire.get("stderr_bytes", 0),
        exec_id=str(wire.get("exec_id", "")),
        message=wire.get("message"),
    )


class OutputCollector:
    """Keeps the first bytes of one output stream."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._chunks: List[bytes] = []
        self._kept_bytes = 0
        self.is_truncated = False

    def add(self, chunk: bytes, dropped_bytes: int) -> None:
        """Counts `dropped_bytes` that never arrived as left out."""
        kept = chunk[: max(0, self._limit_bytes - self._kept_bytes)]
        if len(kept) < len(chunk) or dropped_bytes > 0:
            self.is_truncated = True
        if kept:
            self._chunks.append(kept)
            self._kept_bytes += len(kept)

    def as_bytes(self) -> bytes:
        return b"".join(self._chunks)

    def as_text(self) -> str:
        """A character cut in two by the limit is left out rather than shown as an invalid one."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return decoder.decode(self.as_bytes(), final=not self.is_truncated)


def check_command(cmd: Command, result: ExecResult[Any]) -> None:
    """Raises CommandError unless the command exited with 0."""
    if result.outcome == "exited" and result.exit_code == 0:
        return
    command = cmd if isinstance(cmd, str) else " ".join(cmd)
    if len(command) > _QUOTED_COMMAND_CHARACTERS:
        command = f"{command[:_QUOTED_COMMAND_CHARACTERS]}..."
    said = result.stderr
    stderr: str = said if isinstance(said, str) else said.decode("utf-8", "replace")
    tail = "\n".join(stderr.strip().split("\n")[-_QUOTED_STDERR_LINES:])[-_QUOTED_STDERR_CHARACTERS:]
    raise CommandError(f"`{command}` {_outcome(result)}" + (f":\n{tail}" if tail else ""), result)


def _outcome(result: ExecResult[Any]) -> str:
    because = "" if result.message is None else f" ({result.message})"
    if result.outcome == "exited":
        return f"exited with {result.exit_code}"
    if result.outcome == "signalled":
        return f"was ended by {result.signal or 'a signal'}"
    if result.outcome == "timed_out":
        return f"was ended after {round(result.duration_ms)} ms at its timeout_seconds"
    if result.outcome == "oom":
        return f"ran out of memory{because}"
    return f"was lost with its sandbox{because}"
