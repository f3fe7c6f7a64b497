"""How long to wait before a request is sent again."""

from __future__ import annotations

import email.utils
from typing import Callable, Optional

#: First wait, doubled with every attempt, seconds.
_BASE_DELAY_SECONDS = 0.2
#: Longest wait the client chooses by itself, seconds.
_MAX_DELAY_SECONDS = 5.0
#: A server that asks for a longer wait than this is not waited for: the caller gets the error, seconds.
MAX_RETRY_AFTER_SECONDS = 60.0


#: Attempts at a connection that is refused, for each retry that is allowed: 24 by default, some 10 s in all.
REFUSED_ATTEMPTS_PER_RETRY = 8


def refused_delay_seconds(random: Callable[[], float]) -> float:
    """Wait before a refused connection is tried again: 0.3 to 0.5 s. Nobody is there to be overrun yet."""
    return 0.3 + random() * 0.2


def retry_delay_seconds(
    attempt: int, retry_after_seconds: Optional[float], random: Callable[[], float]
) -> float:
    """Wait before attempt `attempt + 1` (0 for the first retry).

    Exponential with full jitter, so that clients that failed together do not return together. A wait the server asked
    for is kept, with jitter on top.
    """
    ceiling = min(_MAX_DELAY_SECONDS, _BASE_DELAY_SECONDS * 2.0 ** min(attempt, 16))
    if retry_after_seconds is not None:
        return retry_after_seconds + random() * min(ceiling, retry_after_seconds / 4)
    return random() * ceiling


def parse_retry_after(header: Optional[str], now_unix_seconds: float) -> Optional[float]:
    """`Retry-After` (RFC 9110 10.2.3: whole seconds or an HTTP date) in seconds; None when absent or unreadable."""
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text[:12])
    try:
        date = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    try:
        return max(0.0, date.timestamp() - now_unix_seconds)
    except (ValueError, OverflowError):
        return None
