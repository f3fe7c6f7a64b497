"""What can be uploaded, as chunks of bytes."""

from __future__ import annotations

import io
import selectors
import socket
import ssl
from typing import Any, BinaryIO, Callable, Iterable, Iterator, Mapping, Optional, Union

from ._deadline import Deadline
from .errors import InvalidRequestError

#: Content of a file or archive to upload: text (sent as UTF-8), bytes, a file opened for reading, or an iterable of
#: bytes or strings.
UploadContent = Union[str, bytes, bytearray, memoryview, BinaryIO, Iterable[Union[bytes, str]]]

_CHUNK_BYTES = 256 * 1024


class SourceFailed(Exception):
    """Carries, as its cause, what the caller's own source raised, which is not to be taken for a network failure."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class UploadBody:
    """A request body."""

    def __init__(
        self, chunks: Callable[[], Iterator[memoryview]], size_bytes: Optional[int], is_replayable: bool
    ) -> None:
        #: Gives the content from its beginning; to be called once unless `is_replayable`.
        self.chunks = chunks
        #: None when it is not known ahead: the body is then sent chunked.
        self.size_bytes = size_bytes
        #: Whether it can be sent again.
        self.is_replayable = is_replayable


def to_upload_body(content: UploadContent) -> UploadBody:
    """Raises InvalidRequestError when `content` is of no type that can be uploaded."""
    if isinstance(content, str):
        return _whole_body(memoryview(_encode(content)))
    if isinstance(content, (bytes, bytearray, memoryview)):
        return _whole_body(_byte_view(content))
    if hasattr(content, "read"):
        return _file_body(content)
    if isinstance(content, Iterable) and not isinstance(content, Mapping):
        iterable = content
        return UploadBody(lambda: _from_source(iter(iterable)), None, False)
    raise InvalidRequestError(
        "content must be text, bytes, a file opened for reading, or an iterable of bytes or text; it is of type "
        f"{type(content).__name__}",
        code="invalid_request",
    )


def _encode(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as cause:
        raise InvalidRequestError(
            f"the text to upload cannot be written as UTF-8 ({cause}): encode it yourself and pass bytes",
            code="invalid_request",
        ) from cause


def _byte_view(data: Union[bytes, bytearray, memoryview]) -> memoryview:
    view = memoryview(data)
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())


def _whole_body(view: memoryview) -> UploadBody:
    def chunks() -> Iterator[memoryview]:
        for start in range(0, len(view), _CHUNK_BYTES):
            yield view[start : start + _CHUNK_BYTES]

    return UploadBody(chunks, len(view), True)


def _file_body(file: Any) -> UploadBody:
    start: Optional[int] = None
    size: Optional[int] = None
    if not isinstance(file, io.TextIOBase):
        try:
            start = file.tell()
            size = file.seek(0, io.SEEK_END) - start
            file.seek(start)
        except (OSError, ValueError, AttributeError, TypeError):
            start = size = None
    # What says that it is empty may be a file of /proc or a device: it is read to see.
    if start is None or size is None or size <= 0:
        return UploadBody(lambda: _from_source(_read_all(file)), None, False)
    first, total = start, size

    def chunks() -> Iterator[memoryview]:
        try:
            file.seek(first)
        except Exception as error:
            raise SourceFailed(error) from error
        return _exactly(total, _from_source(_read_all(file)))

    return UploadBody(chunks, total, True)


def _read_all(file: Any) -> Iterator[Union[bytes, str]]:
    while True:
        chunk = file.read(_CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


def _exactly(size_bytes: int, chunks: Iterator[memoryview]) -> Iterator[memoryview]:
    """A file that grows meanwhile is sent as long as it was; one that shrinks is an error, not a short upload."""
    left = size_bytes
    for chunk in chunks:
        yield chunk[:left]
        left -= min(left, len(chunk))
        if left == 0:
            return
    raise SourceFailed(OSError(f"the file to upload became {left} bytes shorter while it was read"))


def _from_source(source: Iterator[Any]) -> Iterator[memoryview]:
    while True:
        try:
            item = next(source)
        except StopIteration:
            return
        except Exception as error:
            raise SourceFailed(error) from error
        data = _encode(item) if isinstance(item, str) else item
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise InvalidRequestError(
                f"the content to upload must give bytes or text; it gave a {type(item).__name__}",
                code="invalid_request",
            )
        view = _byte_view(data)
        # In pieces, and without empty ones, which would end a chunked body.
        for start in range(0, len(view), _CHUNK_BYTES):
            yield view[start : start + _CHUNK_BYTES]


def send_upload(sock: socket.socket, upload: UploadBody, deadline: Deadline) -> bool:
    """Sends a body. Each wait for the network has the deadline's whole limit; the source may take its time.

    Returns False when the server answered before it had all: then the rest is not sent.
    """
    if isinstance(sock, ssl.SSLSocket):
        # Something to read on a TLS connection need not be an answer.
        return _send_pieces(upload, lambda piece: _send_blocking(sock, piece, deadline))
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
        return _send_pieces(upload, lambda piece: _send_watching(sock, piece, deadline, selector))


def _send_pieces(upload: UploadBody, send: Callable[[memoryview], bool]) -> bool:
    is_sized = upload.size_bytes is not None
    for chunk in upload.chunks():
        framed = chunk if is_sized else memoryview(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        if not send(framed):
            return False
    return is_sized or send(memoryview(b"0\r\n\r\n"))


def _send_blocking(sock: socket.socket, piece: memoryview, deadline: Deadline) -> bool:
    deadline.restart()
    sock.settimeout(deadline.remaining())
    sock.sendall(piece)
    return True


def _send_watching(
    sock: socket.socket, piece: memoryview, deadline: Deadline, selector: selectors.BaseSelector
) -> bool:
    while len(piece) > 0:
        deadline.restart()
        remaining = deadline.remaining()
        ready = selector.select(remaining)
        if not ready:
            raise deadline.error()
        if ready[0][1] & selectors.EVENT_READ:
            return False
        sock.settimeout(remaining)
        piece = piece[sock.send(piece) :]
    return True
