"""Keep-alive connections to one server, shared by all threads of a process."""

from __future__ import annotations

import http.client
import os
import select
import socket
import ssl
import time
from collections import deque
from typing import Deque, Optional

from ._connection_options import ResolvedConnection

#: Idle connections kept.
_MAX_IDLE = 32
#: A connection idle for longer is not used again, seconds: the server closes its own after 65.
_MAX_IDLE_SECONDS = 55.0


class Lease:
    """A connection that one request has for itself."""

    def __init__(self, http_connection: http.client.HTTPConnection, is_reused: bool) -> None:
        self.http = http_connection
        #: Whether an earlier request went over it: then the server may close it just as we send.
        self.is_reused = is_reused
        self.idle_since = 0.0

    def close(self) -> None:
        self.http.close()


class ConnectionPool:
    """Hands out connections, the latest used first. A connection is never used by two requests at once.

    Without locks: a deque's `append` and `pop` are atomic, so that a fork in the middle cannot leave a lock held.
    """

    def __init__(self, connection: ResolvedConnection) -> None:
        self._connection = connection
        self._ssl_context = connection.ssl_context
        self._idle: Deque[Lease] = deque()
        self._process_id = os.getpid()

    def take(self, *, fresh: bool) -> Lease:
        """A connection, not yet opened when it is a new one. `fresh`: a new one in any case."""
        if self._process_id != os.getpid():
            # A forked child must not write into its parent's connections.
            inherited, self._idle = self._idle, deque()
            self._process_id = os.getpid()
            _close_all(inherited)
        while not fresh:
            try:
                lease = self._idle.pop()
            except IndexError:
                break
            sock: Optional[socket.socket] = lease.http.sock
            is_old = time.monotonic() - lease.idle_since > _MAX_IDLE_SECONDS
            # An idle connection with something to read was closed by the server, or is out of step.
            if sock is None or is_old or is_readable(sock):
                lease.close()
                continue
            return Lease(lease.http, is_reused=True)
        return Lease(self._new_connection(), is_reused=False)

    def give_back(self, lease: Lease) -> None:
        """Takes back a connection whose answer was read to its end."""
        if self._process_id != os.getpid() or len(self._idle) >= _MAX_IDLE:
            lease.close()
            return
        lease.idle_since = time.monotonic()
        self._idle.append(lease)

    def close(self) -> None:
        """Closes the idle connections. Requests under way go on, and new ones open new connections."""
        idle, self._idle = self._idle, deque()
        _close_all(idle)

    def _new_connection(self) -> http.client.HTTPConnection:
        where = self._connection
        if not where.is_tls:
            return http.client.HTTPConnection(where.host, where.port)
        if self._ssl_context is None:
            self._ssl_context = ssl.create_default_context()
        return http.client.HTTPSConnection(where.host, where.port, context=self._ssl_context)


def _close_all(leases: Deque[Lease]) -> None:
    while leases:
        leases.pop().close()


def is_readable(sock: socket.socket) -> bool:
    """Whether there is something to read now: bytes, or the end."""
    try:
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(sock, select.POLLIN)
            return bool(poll.poll(0))
        return bool(select.select([sock], [], [], 0)[0])
    except (OSError, ValueError):
        return True
