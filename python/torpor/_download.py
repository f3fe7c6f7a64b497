"""Bodies of answers as files."""

from __future__ import annotations

import io
import os
import secrets
import stat
from typing import Any, BinaryIO, Iterator, Union, cast

from ._ndjson import read_chunk
from ._transport import OpenAnswer

#: Read ahead of small reads, bytes.
_BUFFER_BYTES = 256 * 1024


class _AnswerReader(io.RawIOBase):
    """The body of an answer, read from the network only as it is read here."""

    def __init__(self, open_answer: OpenAnswer, doing: str) -> None:
        self._open = open_answer
        self._doing = doing
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if len(self._rest) == 0:
            self._rest = memoryview(read_chunk(self._open, self._doing))
        size = min(len(self._rest), len(buffer))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def close(self) -> None:
        if not self.closed:
            self._open.answer.close()
        super().close()


def answer_file(open_answer: OpenAnswer, doing: str) -> BinaryIO:
    """A file object opened for reading; closing it early cuts the connection."""
    return cast(BinaryIO, io.BufferedReader(_AnswerReader(open_answer, doing), _BUFFER_BYTES))


def answer_chunks(open_answer: OpenAnswer, doing: str) -> Iterator[bytes]:
    """All of the body, in pieces as they come."""
    try:
        while True:
            chunk = read_chunk(open_answer, doing)
            if not chunk:
                return
            yield chunk
    finally:
        open_answer.answer.close()


def save_answer(open_answer: OpenAnswer, doing: str, local_path: Union[str, "os.PathLike[str]"]) -> int:
    """Writes the body to a local file and returns its size in bytes.

    The file is replaced as a whole at the end; until then, and when anything fails, what was there stays.
    """
    path = os.path.realpath(os.fspath(local_path))
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = None
    try:
        if mode is not None and stat.S_ISDIR(mode):
            raise IsADirectoryError(f"{path} is a directory: name the file to write")
        if mode is not None and not stat.S_ISREG(mode):
            # A pipe or a device cannot be replaced.
            with open(path, "wb") as file:
                return _write_all(open_answer, doing, file)
        partial = os.path.join(os.path.dirname(path), f".{secrets.token_hex(8)}.part")
        try:
            # Made as `open` would make the file itself, so that the umask counts.
            with open(partial, "xb") as file:
                size_bytes = _write_all(open_answer, doing, file)
            if mode is not None:
                os.chmod(partial, stat.S_IMODE(mode))
            os.replace(partial, path)
        except BaseException:
            try:
                os.unlink(partial)
            except OSError:
                pass
            raise
        return size_bytes
    finally:
        open_answer.answer.close()


def _write_all(open_answer: OpenAnswer, doing: str, file: BinaryIO) -> int:
    size_bytes = 0
    for chunk in answer_chunks(open_answer, doing):
        file.write(chunk)
        size_bytes += len(chunk)
    return size_bytes
