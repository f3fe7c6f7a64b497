"""The answer to one request, its body read as it is wanted."""

from __future__ import annotations

import http.client
import socket
from typing import Optional

from ._connection_pool import ConnectionPool, Lease

#: Bytes read at once.
_CHUNK_BYTES = 256 * 1024


class AnswerClosed(Exception):
    """The answer was closed by our own side while it was read."""


class Answer:
    """Holds its connection until the body is read to its end, which gives it back, or `close()`, which cuts it.

    `close()` may be called by another thread than the one that reads: the reading one is woken.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        lease: Lease,
        sock: socket.socket,
        response: http.client.HTTPResponse,
        *,
        may_keep: bool,
    ) -> None:
        self.status: int = response.status
        self.headers = response.headers
        self._pool = pool
        self._lease = lease
        self._sock = sock
        self._response = response
        self._may_keep = may_keep and not response.will_close
        #: Bytes still to come; None for a chunked body and for one that ends with its connection.
        self._remaining: Optional[int] = response.length
        self._is_over = False
        self._is_closed = False

    def read_some(self, limit_seconds: Optional[float]) -> bytes:
        """The next bytes, waited for as long as the limit; empty at the end.

        Raises AnswerClosed, socket.timeout, http.client.IncompleteRead when the body is cut off, OSError.
        """
        if self._is_over:
            return b""
        if self._is_closed:
            raise AnswerClosed()
        try:
            self._sock.settimeout(limit_seconds)
            data = self._read()
        except BaseException as error:
            was_closed = self._is_closed
            self.close()
            if was_closed and isinstance(error, Exception):
                raise AnswerClosed() from error
            raise
        if self._is_closed:
            raise AnswerClosed()
        return data

    def _read(self) -> bytes:
        # `read1` returns what is there, but does not count a body of known length on every Python version; `read`
        # counts, and waits for all it is asked for, which is as well for a file.
        if self._remaining is None:
            data = self._response.read1(_CHUNK_BYTES)
            if not data:
                self._finish()
            return data
        if self._remaining > 0:
            data = self._response.read(min(_CHUNK_BYTES, self._remaining))
            if not data:
                raise http.client.IncompleteRead(b"", self._remaining)
            self._remaining -= len(data)
        else:
            data = b""
        if self._remaining == 0:
            self._finish()
        return data

    def _finish(self) -> None:
        self._is_over = True
        self._response.close()
        if self._may_keep:
            self._pool.give_back(self._lease)
        else:
            self._lease.close()

    def close(self) -> None:
        """Cuts the connection when the body was not read to its end. Idempotent."""
        if self._is_over or self._is_closed:
            return
        self._is_closed = True
        try:
            # Past the TLS layer, which would wait for the thread that reads; that one is woken by this.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        except OSError:
            pass
        self._response.close()
        self._lease.close()

    def __del__(self) -> None:
        if hasattr(self, "_is_closed"):
            self.close()
