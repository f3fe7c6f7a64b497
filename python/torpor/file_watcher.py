"""Changes below a directory, as they happen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Optional

from ._closing import Closing
from ._ndjson import read_lines
from ._transport import OpenAnswer
from .errors import ConnectionError, TorporError

_CHANGE_TYPES = frozenset(("create", "write", "remove", "rename", "chmod", "missed"))


@dataclass(frozen=True)
class FileChange:
    #: `create`, `write`, `remove`, `rename` or `chmod`; `missed`, of `.`, when a snapshot or a fork cut the watch off for a
    #: moment: look at the directory anew.
    type: str
    #: Relative to the watched directory.
    name: str


class FileWatcher(Closing):
    """The changes below a directory, from the moment it was made by `filesystem.watch`.

    Iterate it in one thread; `close()`, from any thread, ends the iteration. It ends by itself only when the sandbox
    or the connection does, with ConnectionError: changes may have been missed then.
    """

    def __init__(self, open_answer: OpenAnswer, path: str) -> None:
        self._open = open_answer
        self._path = path
        self._is_closed = False
        self._changes = self._read_changes()

    def __iter__(self) -> Iterator[FileChange]:
        return self._changes

    def close(self) -> None:
        """Stops watching. Idempotent."""
        self._is_closed = True
        self._open.answer.close()

    def _read_changes(self) -> Iterator[FileChange]:
        try:
            for line in read_lines(self._open, f"watching {self._path}"):
                kind, name = line.get("type"), line.get("name")
                if kind in _CHANGE_TYPES and isinstance(name, str):
                    yield FileChange(str(kind), name)
        except TorporError:
            if self._is_closed:
                return
            raise
        finally:
            self._open.answer.close()
        if not self._is_closed:
            raise ConnectionError(
                f"watching {self._path} ended: the sandbox or its server went away",
                code="connection_lost",
                retryable=True,
            )
