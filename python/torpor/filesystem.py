"""The files of a sandbox."""

from __future__ import annotations

import os
from typing import Any, BinaryIO, Callable, Dict, List, Mapping, Optional, Union

from ._answered_list import answered_list
from ._download import answer_chunks, answer_file, save_answer
from ._request import QueryValue, Request, invalid, json_fields
from ._transport import OpenAnswer, Transport
from ._upload_body import UploadContent, to_upload_body
from .errors import NotFoundError, TorporError
from .file_entry import FileEntry, file_entry
from .file_watcher import FileWatcher

LocalPath = Union[str, "os.PathLike[str]"]


class SandboxFilesystem:
    """Paths in the sandbox are absolute, or start with `~/`.

    Content is streamed both ways: nothing but what `read` and `read_bytes` return is held in memory. The time limit of
    a transfer is the longest time without progress. What is missing raises NotFoundError `file_not_found`.
    """

    def __init__(self, transport: Transport, root: str) -> None:
        """`root` is the path of the sandbox's `fs` resource."""
        self._transport = transport
        self._root = root

    def read(
        self,
        path: str,
        *,
        offset: Optional[int] = None,
        length: Optional[int] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> str:
        """A file's content, or `length` bytes of it from `offset`, as text; invalid UTF-8 is replaced by U+FFFD."""
        data = self.read_bytes(path, offset=offset, length=length, call_timeout_seconds=call_timeout_seconds)
        return data.decode("utf-8", "replace")

    def read_bytes(
        self,
        path: str,
        *,
        offset: Optional[int] = None,
        length: Optional[int] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> bytes:
        """A file's content, or `length` bytes of it from `offset`."""
        answer = self._open_content(path, offset, length, call_timeout_seconds)
        return b"".join(answer_chunks(answer, f"reading {path}"))

    def read_stream(
        self,
        path: str,
        *,
        offset: Optional[int] = None,
        length: Optional[int] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> BinaryIO:
        """A file's content as a binary file object, read from the sandbox only as fast as it is consumed.

        Use it in a `with` block: it holds a connection until it is read to its end or closed.
        """
        return answer_file(self._open_content(path, offset, length, call_timeout_seconds), f"reading {path}")

    def write(
        self,
        path: str,
        content: UploadContent,
        *,
        mode: Optional[int] = None,
        user: Optional[str] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> FileEntry:
        """Writes a file; missing directories are made. A failed write leaves the old content whole.

        `content`: text, bytes, a file opened for reading, or an iterable of bytes or text. `mode`: permission bits,
        e.g. 0o755; default those of the file replaced, else 0o644. `user`: owner of what is made; default `user`.
        What comes from an iterable is sent once: such a write is not retried. Raises NoSpaceError when the sandbox's
        disk is full.
        """
        query: Dict[str, QueryValue] = {"path": path, "mode": _mode_text(mode), "user": user}
        return file_entry(self._transport.json(self._upload("", query, content, call_timeout_seconds)))

    def upload(
        self,
        local_path: LocalPath,
        path: str,
        *,
        mode: Optional[int] = None,
        user: Optional[str] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> FileEntry:
        """Copies a local file into the sandbox, as `write` does. For a whole directory see `upload_archive`."""
        with open(local_path, "rb") as file:
            return self.write(path, file, mode=mode, user=user, call_timeout_seconds=call_timeout_seconds)

    def download(
        self, path: str, local_path: LocalPath, *, call_timeout_seconds: Optional[float] = None
    ) -> int:
        """Copies a file of the sandbox to a local one and returns its size in bytes.

        The local file is replaced as a whole at the end; when anything fails, what was there stays.
        """
        answer = self._open_content(path, None, None, call_timeout_seconds)
        return save_answer(answer, f"downloading {path}", local_path)

    def list(
        self, path: str, *, depth: Optional[int] = None, call_timeout_seconds: Optional[float] = None
    ) -> List[FileEntry]:
        """The entries of a directory. `depth`: levels to descend; default 1, its own entries."""
        request = self._request("GET", "/dir", {"path": path, "depth": depth}, call_timeout_seconds)
        return [file_entry(wire) for wire in answered_list(self._transport.json(request), "entries")]

    def stat(self, path: str, *, call_timeout_seconds: Optional[float] = None) -> FileEntry:
        """One entry."""
        request = self._request("GET", "/stat", {"path": path}, call_timeout_seconds)
        return file_entry(self._transport.json(request))

    def exists(self, path: str, *, call_timeout_seconds: Optional[float] = None) -> bool:
        """Whether there is anything at `path`."""
        return _is_found(lambda: self.stat(path, call_timeout_seconds=call_timeout_seconds))

    def mkdir(self, path: str, *, call_timeout_seconds: Optional[float] = None) -> None:
        """Makes a directory and those above it; one that exists is fine."""
        self._transport.text(self._request("POST", "/dir", {"path": path}, call_timeout_seconds))

    def move(self, source: str, destination: str, *, call_timeout_seconds: Optional[float] = None) -> None:
        """Moves or renames; missing directories above the destination are made, a file there is replaced."""
        request = self._request("POST", "/move", {}, call_timeout_seconds)
        request.json_body = json_fields({"source": source, "destination": destination})
        self._transport.text(request)

    def remove(self, path: str, *, call_timeout_seconds: Optional[float] = None) -> bool:
        """Removes a file, or a directory with all it holds. Returns False when there was nothing at `path`."""
        request = self._request("DELETE", "", {"path": path}, call_timeout_seconds)
        return _is_found(lambda: self._transport.text(request))

    def watch(
        self, path: str, *, recursive: bool = False, call_timeout_seconds: Optional[float] = None
    ) -> FileWatcher:
        """Watches a directory; changes are recorded from the moment this returns. Use it in a `with` block."""
        query: Dict[str, QueryValue] = {"path": path, "recursive": recursive or None}
        request = self._request("GET", "/watch", query, call_timeout_seconds)
        request.accept = "application/x-ndjson"
        return FileWatcher(self._transport.open(request), path)

    def upload_archive(
        self,
        path: str,
        tar: UploadContent,
        *,
        gzip: bool = False,
        user: Optional[str] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> None:
        """Unpacks a tar archive below `path`, which is made when missing. A failure may leave part of it unpacked."""
        query: Dict[str, QueryValue] = {"path": path, "format": _format(gzip), "user": user}
        request = self._upload("/archive", query, tar, call_timeout_seconds)
        request.headers = {"content-type": "application/gzip" if gzip else "application/x-tar"}
        self._transport.text(request)

    def download_archive(
        self, path: str, *, gzip: bool = False, call_timeout_seconds: Optional[float] = None
    ) -> BinaryIO:
        """A file or directory as a tar archive: a binary file object, streamed.

        `tarfile.open(fileobj=..., mode="r|")` reads it as it comes. What is in it was made by code you may not trust:
        extract it with `filter="data"`.
        """
        request = self._request(
            "GET", "/archive", {"path": path, "format": _format(gzip)}, call_timeout_seconds
        )
        request.accept = "application/x-tar, application/gzip"
        return answer_file(self._transport.open(request), f"downloading {path} as an archive")

    def _open_content(
        self,
        path: str,
        offset: Optional[int],
        length: Optional[int],
        call_timeout_seconds: Optional[float],
    ) -> OpenAnswer:
        request = self._request("GET", "", {"path": path}, call_timeout_seconds)
        request.accept = "application/octet-stream"
        wants_part = offset is not None or length is not None
        if wants_part:
            request.headers = {"range": _range(0 if offset is None else offset, length)}
        opened = self._transport.open(request)
        if wants_part and opened.answer.status != 206:
            opened.answer.close()
            raise TorporError(
                f"{path} was not read in part: the server answered with the whole file", code="unsupported"
            )
        return opened

    def _upload(
        self,
        resource: str,
        query: Mapping[str, QueryValue],
        content: UploadContent,
        call_timeout_seconds: Optional[float],
    ) -> Request:
        request = self._request("PUT", resource, query, call_timeout_seconds)
        request.upload = to_upload_body(content)
        return request

    def _request(
        self,
        method: str,
        resource: str,
        query: Mapping[str, QueryValue],
        call_timeout_seconds: Optional[float],
    ) -> Request:
        return Request(
            method, f"{self._root}{resource}", query=query, call_timeout_seconds=call_timeout_seconds
        )


def _format(gzip: bool) -> Optional[str]:
    return "tar.gz" if gzip else None


def _mode_text(mode: Optional[int]) -> Optional[str]:
    if mode is None:
        return None
    if not 0 <= mode <= 0o7777:
        raise invalid(f"mode must be permission bits, e.g. 0o644; it is {mode!r}", "mode")
    return f"{mode:04o}"


def _range(first: int, length: Optional[int]) -> str:
    if first < 0 or (length is not None and length < 1):
        raise invalid(f"offset must be at least 0 and length at least 1; they are {first} and {length}")
    return f"bytes={first}-" + ("" if length is None else str(first + length - 1))


def _is_found(look: Callable[[], Any]) -> bool:
    """False only when the file is missing: a missing sandbox still raises."""
    try:
        look()
    except NotFoundError as error:
        if error.code == "file_not_found":
            return False
        raise
    return True
