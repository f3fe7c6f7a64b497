"""Error answers of the wire as typed errors."""

from __future__ import annotations

import json
import time
from typing import Any, Dict, Mapping, Optional, Type

from ._answer import Answer
from ._deadline import Deadline
from ._retry_delay import parse_retry_after
from .errors import (
    AuthenticationError,
    CapacityError,
    ConflictError,
    EventsExpiredError,
    InvalidRequestError,
    NoSpaceError,
    NotFoundError,
    PermissionError,
    QuotaExceededError,
    RateLimitError,
    SandboxEndedError,
    TimeoutError,
    TorporError,
    UnavailableError,
)

#: An error answer is read up to here, bytes: envelopes are small, a proxy's page need not be.
_MAX_ERROR_BODY_BYTES = 256 * 1024
#: How much of an unreadable answer is quoted, characters.
_QUOTED_CHARACTERS = 200

#: By code first: an error in the middle of a stream has no status.
_CLASS_BY_CODE: Dict[str, Type[TorporError]] = {
    "invalid_request": InvalidRequestError,
    "invalid_path": InvalidRequestError,
    "unsupported": InvalidRequestError,
    "method_not_allowed": InvalidRequestError,
    "payload_too_large": InvalidRequestError,
    "range_not_satisfiable": InvalidRequestError,
    "unauthenticated": AuthenticationError,
    "permission_denied": PermissionError,
    "quota_exceeded": QuotaExceededError,
    "budget_exhausted": QuotaExceededError,
    "not_found": NotFoundError,
    "sandbox_not_found": NotFoundError,
    "template_not_found": NotFoundError,
    "file_not_found": NotFoundError,
    "process_not_found": NotFoundError,
    "snapshot_not_found": NotFoundError,
    "conflict": ConflictError,
    "wrong_state": ConflictError,
    "image_corrupt": ConflictError,
    "image_incompatible": ConflictError,
    "already_exists": ConflictError,
    "idempotency_mismatch": ConflictError,
    "idempotency_in_progress": ConflictError,
    "sandbox_ended": SandboxEndedError,
    "events_expired": EventsExpiredError,
    "port_not_open": UnavailableError,
    "capacity_exhausted": CapacityError,
    "rate_limited": RateLimitError,
    "host_unavailable": UnavailableError,
    "store_unavailable": UnavailableError,
    "template_not_ready": UnavailableError,
    "guest_unavailable": UnavailableError,
    "deadline_exceeded": TimeoutError,
    "no_space": NoSpaceError,
}

#: For codes of a later version, and for answers of something else.
_CLASS_BY_STATUS: Dict[int, Type[TorporError]] = {
    400: InvalidRequestError,
    401: AuthenticationError,
    402: QuotaExceededError,
    403: PermissionError,
    404: NotFoundError,
    405: InvalidRequestError,
    409: ConflictError,
    410: SandboxEndedError,
    413: InvalidRequestError,
    416: InvalidRequestError,
    422: ConflictError,
    429: RateLimitError,
    502: UnavailableError,
    503: UnavailableError,
    504: TimeoutError,
    507: NoSpaceError,
}

_RETRYABLE_STATUSES = frozenset((429, 502, 503, 504))


def error_from_answer(answer: Answer, method: str, path: str, deadline: Deadline) -> TorporError:
    """Reads an answer that is not 2xx. One that is no error envelope is judged by its status and quoted."""
    status, headers = answer.status, answer.headers
    request_id = headers.get("x-request-id")
    retry_after_seconds = parse_retry_after(headers.get("retry-after"), time.time())
    text = _read_capped(answer, deadline).decode("utf-8", "replace")
    envelope = _envelope(text)
    if envelope is None:
        return _make_error(
            _foreign_answer_message(status, headers.get("location"), method, path, text),
            code=f"http_{status}",
            status=status,
            request_id=request_id,
            retryable=status in _RETRYABLE_STATUSES,
            retry_after_seconds=retry_after_seconds,
        )
    retryable = envelope.get("retryable")
    named_id = envelope.get("request_id")
    return _make_error(
        _message_of(envelope, envelope["code"]),
        code=envelope["code"],
        status=status,
        request_id=request_id or (named_id if isinstance(named_id, str) else None),
        details=_details_of(envelope),
        retryable=retryable if isinstance(retryable, bool) else status in _RETRYABLE_STATUSES,
        retry_after_seconds=retry_after_seconds,
    )


def error_from_fields(fields: Mapping[str, Any]) -> TorporError:
    """An error that is part of an answer or a line of a stream: an envelope, or what is in one."""
    inner = fields.get("error")
    error = inner if isinstance(inner, dict) else fields
    code = error.get("code")
    return _make_error(
        _message_of(error, "the server reported an error without saying which"),
        code=code if isinstance(code, str) else "internal",
        details=_details_of(error),
        retryable=error.get("retryable") is True,
    )


def _make_error(message: str, *, code: str, status: Optional[int] = None, **facts: Any) -> TorporError:
    error_class = _CLASS_BY_CODE.get(code, _CLASS_BY_STATUS.get(status or 0, TorporError))
    return error_class(message, code=code, status=status, **facts)


def _envelope(text: str) -> Optional[Dict[str, Any]]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) and isinstance(error.get("code"), str) else None


def _message_of(error: Mapping[str, Any], otherwise: str) -> str:
    message = error.get("message")
    return message if isinstance(message, str) and message else otherwise


def _details_of(error: Mapping[str, Any]) -> Dict[str, Any]:
    details = error.get("details")
    return details if isinstance(details, dict) else {}


def _foreign_answer_message(status: int, location: Optional[str], method: str, path: str, text: str) -> str:
    what = f"{method} {path} was answered {status}"
    if 300 <= status < 400:
        target = location or "another address"
        return f"{what}, a redirect to {target}: redirects are not followed, set the URL to the final address"
    quoted = text if len(text) <= _QUOTED_CHARACTERS else f"{text[:_QUOTED_CHARACTERS]}..."
    body = repr(quoted) if quoted.strip() else "an empty body"
    return f"{what} by something that does not speak Torpor's API ({body}): check the URL and any proxy in between"


def _read_capped(answer: Answer, deadline: Deadline) -> bytes:
    body = bytearray()
    try:
        while len(body) < _MAX_ERROR_BODY_BYTES:
            chunk = answer.read_some(deadline.remaining())
            if not chunk:
                return bytes(body)
            body += chunk
    except Exception:
        # The status is known already and is worth more than the rest of the body.
        pass
    answer.close()
    return bytes(body)
