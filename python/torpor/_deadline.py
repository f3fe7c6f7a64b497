"""The time limit of one call."""

from __future__ import annotations

import math
import time
from typing import Optional

from .errors import InvalidRequestError, TimeoutError


class Deadline:
    """Counts from its making, or from the last `restart()`. A limit of 0 is none."""

    def __init__(self, what: str, limit_seconds: float) -> None:
        """`what` names the call in the error. Raises InvalidRequestError when the limit is no duration."""
        if not (limit_seconds >= 0) or math.isinf(limit_seconds):
            raise InvalidRequestError(
                f"call_timeout_seconds must be a number of seconds, 0 for no limit; it is {limit_seconds!r}",
                code="invalid_request",
            )
        self._what = what
        self.limit_seconds = limit_seconds
        self._ends_at = math.inf
        self.restart()

    def restart(self) -> None:
        """Gives the limit anew: there was progress."""
        self._ends_at = time.monotonic() + self.limit_seconds if self.limit_seconds else math.inf

    def remaining(self) -> Optional[float]:
        """Seconds left, as a socket takes them; None for no limit. Raises TimeoutError when there are none left."""
        if self._ends_at == math.inf:
            return None
        left = self._ends_at - time.monotonic()
        if left <= 0:
            raise self.error()
        return left

    def error(self) -> TimeoutError:
        return TimeoutError(
            f"{self._what} did not finish within {self.limit_seconds:g} s: raise call_timeout_seconds, or look at "
            "the server's /healthz",
            code="timeout",
            retryable=True,
            details={"call_timeout_seconds": self.limit_seconds},
        )
