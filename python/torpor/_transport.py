"""Sends requests: headers, time limits, retries, errors. Knows nothing of what they mean."""

from __future__ import annotations

import http.client
import json
import random
import re
import secrets
import socket
import ssl
import time
from typing import Any, Dict, NamedTuple, NoReturn, Optional, cast

from ._answer import Answer, AnswerClosed
from ._connection_options import ResolvedConnection, read_api_key
from ._connection_pool import ConnectionPool, Lease, is_readable
from ._deadline import Deadline
from ._error_answers import error_from_answer
from ._request import Request, invalid
from ._retry_delay import (
    MAX_RETRY_AFTER_SECONDS,
    REFUSED_ATTEMPTS_PER_RETRY,
    refused_delay_seconds,
    retry_delay_seconds,
)
from ._upload_body import SourceFailed, send_upload
from ._version import VERSION
from .errors import AuthenticationError, ConnectionError, TorporError

#: Longest wait for a connection to be opened, seconds.
_CONNECT_SECONDS = 30.0
#: How a connection shows that the other side had closed it.
_STALE = (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError, ConnectionAbortedError)


class OpenAnswer(NamedTuple):
    """An answer whose body is still to be read."""

    answer: Answer
    #: Longest wait for the next bytes, seconds; None for no limit.
    silence_seconds: Optional[float]
    #: The call, for messages.
    what: str


class Transport:
    """One server, as one client sees it. Safe to use from several threads."""

    def __init__(self, connection: ResolvedConnection) -> None:
        self.connection = connection
        self._pool = ConnectionPool(connection)
        self._api_key: Optional[str] = None

    def json(self, request: Request) -> Dict[str, Any]:
        """Sends and reads a JSON object. That it has the shape expected is the server's promise, and not checked."""
        body = self._call(request)
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError) as cause:
            raise _no_object(request) from cause
        if not isinstance(answer, dict):
            raise _no_object(request)
        return answer

    def text(self, request: Request) -> str:
        """Sends and reads the answer as text."""
        return self._call(request).decode("utf-8", "replace")

    def open(self, request: Request) -> OpenAnswer:
        """Sends and leaves the body to be read. The time limit bounds the waits without progress."""
        deadline = self._deadline(request)
        what = f"{request.method} {request.path}"
        return OpenAnswer(self._with_retries(request, deadline, None), deadline.limit_seconds or None, what)

    def close(self) -> None:
        """Closes idle connections."""
        self._pool.close()

    def _call(self, request: Request) -> bytes:
        deadline = self._deadline(request)
        body = bytearray()
        self._with_retries(request, deadline, body)
        return bytes(body)

    def _deadline(self, request: Request) -> Deadline:
        limit = request.call_timeout_seconds
        if limit is None:
            limit = self.connection.call_timeout_seconds
        return Deadline(f"{request.method} {request.path}", limit)

    def _with_retries(self, request: Request, deadline: Deadline, into: Optional[bytearray]) -> Answer:
        """Sends until there is a good answer; reads all of it when there is something to read it into."""
        headers = self._headers(request)
        is_replayable = request.upload is None or request.upload.is_replayable
        retries = refusals = 0
        while True:
            try:
                return self._attempt(request, headers, deadline, into)
            except TorporError as error:
                failure = error
            if isinstance(failure, AuthenticationError):
                # Its file may hold another one by the next request.
                self._api_key = None
            wait = failure.retry_after_seconds
            max_retries = self.connection.max_retries
            is_refused = failure.details.get("refused") is True
            if is_refused:
                is_used_up = refusals >= max_retries * REFUSED_ATTEMPTS_PER_RETRY
            else:
                is_used_up = retries >= max_retries
            is_last = not failure.retryable or not is_replayable or is_used_up
            if is_last or failure.code == "timeout" or (wait is not None and wait > MAX_RETRY_AFTER_SECONDS):
                raise failure
            if is_refused:
                delay = refused_delay_seconds(random.random)
                refusals += 1
            else:
                delay = retry_delay_seconds(retries, wait, random.random)
                retries += 1
            remaining = deadline.remaining()
            if remaining is not None and delay >= remaining:
                raise failure
            time.sleep(delay)
            if request.upload is not None:
                deadline.restart()

    def _attempt(
        self, request: Request, headers: Dict[str, str], deadline: Deadline, into: Optional[bytearray]
    ) -> Answer:
        # A stream cannot be sent twice, so that it is not risked on a connection which may just be closing.
        fresh = request.upload is not None and not request.upload.is_replayable
        answer: Optional[Answer] = None
        try:
            try:
                answer = self._send(request, headers, deadline, fresh)
            except _StaleConnection:
                answer = self._send(request, headers, deadline, True)
            if not 200 <= answer.status < 300:
                raise error_from_answer(answer, request.method, request.path, deadline)
            if into is not None:
                into.clear()
                while True:
                    chunk = answer.read_some(deadline.remaining())
                    if not chunk:
                        break
                    into += chunk
            return answer
        except BaseException as error:
            if answer is not None:
                answer.close()
            self._raise_typed(error, request, deadline)

    def _raise_typed(self, error: BaseException, request: Request, deadline: Deadline) -> NoReturn:
        if isinstance(error, SourceFailed):
            raise error.cause
        if isinstance(error, socket.timeout) and not isinstance(error, TorporError):
            raise deadline.error() from error
        is_network = isinstance(error, (OSError, http.client.HTTPException))
        if is_network and not isinstance(error, TorporError):
            raise _connection_error(error, request, self.connection) from error
        raise error

    def _send(self, request: Request, headers: Dict[str, str], deadline: Deadline, fresh: bool) -> Answer:
        lease = self._pool.take(fresh=fresh)
        try:
            sock = _connected(lease, deadline)
            was_sent = self._send_request(lease, sock, request, headers, deadline)
            sock.settimeout(deadline.remaining())
            response = lease.http.getresponse()
            return Answer(self._pool, lease, sock, response, may_keep=was_sent)
        except _STALE as error:
            lease.close()
            is_repeatable = request.upload is None or request.upload.is_replayable
            if lease.is_reused and is_repeatable:
                raise _StaleConnection() from error
            raise
        except BaseException:
            lease.close()
            raise

    def _send_request(
        self, lease: Lease, sock: socket.socket, request: Request, headers: Dict[str, str], deadline: Deadline
    ) -> bool:
        lease.http.putrequest(request.method, f"{self.connection.base_path}{request.target}")
        for name, value in headers.items():
            lease.http.putheader(name, value)
        lease.http.endheaders(request.json_body)
        if request.upload is None:
            return True
        try:
            was_sent = send_upload(sock, request.upload, deadline)
        except _STALE:
            # It may have said why before it hung up: a full disk, an ended sandbox.
            if not lease.is_reused and is_readable(sock):
                return False
            raise
        deadline.restart()
        return was_sent

    def authorization(self) -> Dict[str, str]:
        """The header that holds the API key. Raises ConfigurationError when there is none."""
        if self._api_key is None:
            # Only a key that was read is remembered: the file may be there at the next request.
            self._api_key = read_api_key(self.connection)
        return {"authorization": f"Bearer {self._api_key}"}

    def _headers(self, request: Request) -> Dict[str, str]:
        headers = {
            **self.authorization(),
            "user-agent": f"torpor-sdk-python/{VERSION}",
            "accept": request.accept,
        }
        if request.method == "POST":
            headers["idempotency-key"] = _idempotency_key(request.idempotency_key)
        if request.json_body is not None:
            headers["content-type"] = "application/json"
        if request.upload is not None:
            headers["content-type"] = "application/octet-stream"
        headers.update(request.headers)
        size_bytes: Optional[int] = None
        if request.json_body is not None:
            size_bytes = len(request.json_body)
        elif request.upload is not None:
            size_bytes = request.upload.size_bytes
            if size_bytes is None:
                headers["transfer-encoding"] = "chunked"
        elif request.method != "GET":
            size_bytes = 0
        if size_bytes is not None:
            headers["content-length"] = str(size_bytes)
        return headers


class _StaleConnection(Exception):
    """A reused connection was closed by the server as we sent: the request is to go over a new one."""


def _connected(lease: Lease, deadline: Deadline) -> socket.socket:
    remaining = deadline.remaining()
    if lease.http.sock is None:
        is_capped = remaining is None or remaining > _CONNECT_SECONDS
        lease.http.timeout = _CONNECT_SECONDS if is_capped else remaining
        try:
            lease.http.connect()
        except socket.timeout as error:
            if not is_capped:
                raise
            raise OSError(f"no connection within {_CONNECT_SECONDS:g} s") from error
        cast(socket.socket, lease.http.sock).setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock = cast(socket.socket, lease.http.sock)
    sock.settimeout(deadline.remaining())
    return sock


def new_idempotency_key() -> str:
    """128 random bits in hexadecimal."""
    return secrets.token_hex(16)


def _idempotency_key(given: Optional[str]) -> str:
    if given is None:
        return new_idempotency_key()
    if re.fullmatch(r"[\x21-\x7e]{1,255}", given):
        return given
    raise invalid(
        f"idempotency_key must be 1 to 255 printable ASCII characters without spaces; it is {given[:80]!r}",
        "idempotency_key",
    )


def _no_object(request: Request) -> TorporError:
    return TorporError(
        f"{request.method} {request.path} was answered with a body that is no JSON object: check the URL and any proxy",
        code="invalid_response",
    )


def _connection_error(
    error: BaseException, request: Request, connection: ResolvedConnection
) -> ConnectionError:
    why = describe_failure(error)
    is_untrusted = isinstance(error, ssl.SSLCertVerificationError)
    if is_untrusted:
        hint = "its certificate is not trusted here; pass an ssl_context that trusts it, or set SSL_CERT_FILE"
    elif isinstance(error, ConnectionRefusedError):
        if connection.is_loopback:
            hint = "nothing listens there; start it with `torpor up`, or set TORPOR_URL"
        else:
            hint = "nothing listens there; check TORPOR_URL or the url argument"
    else:
        hint = "check the network and the server's log"
    return ConnectionError(
        f"{request.method} {request.path} at {connection.url} failed ({why}): {hint}",
        code="connection_failed",
        retryable=not is_untrusted,
        # Nobody has seen the request, and who restarts a server takes a few seconds: it is worth trying for longer.
        details={"refused": True} if isinstance(error, ConnectionRefusedError) else {},
    )


def describe_failure(error: BaseException) -> str:
    """What went wrong with a connection, in words."""
    if isinstance(error, AnswerClosed):
        return "it was closed by this program"
    if isinstance(error, http.client.IncompleteRead):
        return "it ended in the middle of the answer"
    return str(error) or type(error).__name__
