"""Newline-delimited JSON."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any, Dict, Iterator, List

from ._answer import AnswerClosed
from ._transport import OpenAnswer, describe_failure
from .errors import ConnectionError, TimeoutError, TorporError

#: Longest line accepted, bytes: output comes in chunks of 32 KiB, so this is far above any honest line.
_MAX_LINE_BYTES = 16 * 1024 * 1024


def read_chunk(open_answer: OpenAnswer, doing: str) -> bytes:
    """The next bytes of an answer, empty at its end, its failures as this client's errors."""
    try:
        return open_answer.answer.read_some(open_answer.silence_seconds)
    except socket.timeout as error:
        raise TimeoutError(
            f"{open_answer.what} was silent for {open_answer.silence_seconds:g} s in the middle of {doing}: raise "
            "call_timeout_seconds, or look at the server's /healthz",
            code="timeout",
            retryable=True,
        ) from error
    except (OSError, http.client.HTTPException, AnswerClosed) as error:
        why = describe_failure(error)
        raise ConnectionError(
            f"the connection broke in the middle of {doing} ({why}): what was received is incomplete",
            code="connection_lost",
            retryable=True,
            details={"why": why},
        ) from error


def read_lines(open_answer: OpenAnswer, doing: str) -> Iterator[Dict[str, Any]]:
    """The JSON objects of an answer, one a line. Blank lines are skipped; the last one needs no line break."""
    pending: List[bytes] = []
    pending_bytes = 0
    while True:
        chunk = read_chunk(open_answer, doing)
        if not chunk:
            break
        lines = chunk.split(b"\n")
        pending.append(lines[0])
        pending_bytes += len(lines[0])
        for line in lines[1:]:
            yield from _parse(b"".join(pending))
            pending = [line]
            pending_bytes = len(line)
        if pending_bytes > _MAX_LINE_BYTES:
            raise _invalid_stream(f"a line of more than {_MAX_LINE_BYTES} bytes")
    yield from _parse(b"".join(pending))


def _parse(line: bytes) -> Iterator[Dict[str, Any]]:
    if not line.strip():
        return
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as cause:
        raise _invalid_stream(
            f"a line that is no JSON ({line[:100]!r}): was the stream cut off or altered?"
        ) from cause
    if not isinstance(value, dict):
        raise _invalid_stream("a line that is no JSON object")
    yield value


def _invalid_stream(what: str) -> TorporError:
    return TorporError(f"the server sent {what}", code="invalid_response")
