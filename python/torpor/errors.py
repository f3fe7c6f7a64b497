"""Errors of this client. All are TorporError; what a caller's own callback or upload source raises stays as it is."""

from __future__ import annotations

import builtins
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple, Type, TYPE_CHECKING

if TYPE_CHECKING:
    from .exec_result import ExecResult


class TorporError(Exception):
    """Base of every error this client makes."""

    #: Machine-readable code: the server's own, or `connection_lost`, `invalid_response`, ... made by the client.
    code: str
    #: HTTP status, or None when no answer was received.
    status: Optional[int]
    #: The server's name for the request (`x-request-id`): give it when asking for help.
    request_id: Optional[str]
    #: What the server added: the field, the limit, the refused value.
    details: Dict[str, Any]
    #: Whether the same request may succeed if sent again.
    retryable: bool
    #: How long the server asked to wait, seconds; None when it did not say.
    retry_after_seconds: Optional[float]

    def __init__(
        self,
        message: str,
        *,
        code: str,
        status: Optional[int] = None,
        request_id: Optional[str] = None,
        details: Optional[Mapping[str, Any]] = None,
        retryable: bool = False,
        retry_after_seconds: Optional[float] = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.request_id = request_id
        self.details = dict(details or {})
        self.retryable = retryable
        self.retry_after_seconds = retry_after_seconds

    @property
    def message(self) -> str:
        """What was tried, on what, why it failed and what to do."""
        return str(self.args[0])

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> Tuple[Any, ...]:
        # Exceptions with keyword arguments do not pickle by themselves, and worker processes hand theirs over so.
        return _restore_error, (type(self), self.message, dict(self.__dict__))


def _restore_error(cls: Type[TorporError], message: str, state: Dict[str, Any]) -> TorporError:
    error = cls.__new__(cls)
    error.args = (message,)
    error.__dict__.update(state)
    return error


class ConfigurationError(TorporError):
    """The client lacks what it needs to make a request: no URL, no API key, an unreadable key file."""


class AuthenticationError(TorporError):
    """401: the API key is missing, unknown, expired or revoked."""


class PermissionError(TorporError, builtins.PermissionError):
    """403: the API key is good but lacks the scope or is bound to another tenant."""


class NotFoundError(TorporError):
    """404: no such sandbox, file, process, snapshot or template, or it is someone else's. `code` says which."""


class RequestIssue(NamedTuple):
    """One problem of a refused request."""

    #: The field, as it is named on the wire.
    path: str
    message: str


class InvalidRequestError(TorporError):
    """400, 405, 413, 416: the request is wrong and would be refused again."""

    @property
    def issues(self) -> List[RequestIssue]:
        """The problems field by field; empty when the server names none."""
        issues = self.details.get("issues")
        if not isinstance(issues, list):
            return []
        return [
            RequestIssue(issue["path"], issue["message"])
            for issue in issues
            if isinstance(issue, dict)
            and isinstance(issue.get("path"), str)
            and isinstance(issue.get("message"), str)
        ]


class ConflictError(TorporError):
    """409: the request contradicts the present state, or an idempotency key was used for something else."""


class SandboxEndedError(TorporError):
    """410: the sandbox has ended."""

    @property
    def reason(self) -> Optional[str]:
        """Why: `user`, `ttl_expired`, `idle`, `oom`, `runtime_crashed`, ...; None when the server does not say."""
        reason = self.details.get("reason")
        return reason if isinstance(reason, str) else None


class EventsExpiredError(TorporError):
    """410 `events_expired`: the place to go on from is no longer kept, so events may have been missed."""


class RateLimitError(TorporError):
    """429 `rate_limited`: too many requests. Raised once the client's own retries are used up."""


class QuotaExceededError(TorporError):
    """403 `quota_exceeded`: a limit of the account or the tenant, which waiting does not change; `details` name it.

    402 `budget_exhausted`: its budget is spent; `details["renews_at"]` says when it begins anew.
    """


class CapacityError(TorporError):
    """429 `capacity_exhausted`: no room for another sandbox on the machine now."""


class NoSpaceError(TorporError):
    """507: the sandbox's disk is full."""


class UnavailableError(TorporError):
    """502, 503: the server, the host or the sandbox's agent cannot answer now. Retried before it is raised."""


class TimeoutError(TorporError, builtins.TimeoutError):
    """`call_timeout_seconds` passed, or the server answered 504. The request may or may not have taken effect."""


class ConnectionError(TorporError, builtins.ConnectionError):
    """The server could not be reached, or the connection broke before the answer was complete."""


class CommandError(TorporError):
    """A command run with `check=True` did not exit with 0."""

    #: All that is known of the command, its output included.
    result: "ExecResult[Any]"

    def __init__(self, message: str, result: "ExecResult[Any]") -> None:
        super().__init__(
            message,
            code="command_failed",
            details={"outcome": result.outcome, "exit_code": result.exit_code},
        )
        self.result = result
