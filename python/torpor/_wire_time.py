"""Times of the wire (RFC 3339)."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any, Optional

_RFC_3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))"
)


def parse_time(value: Any) -> Optional[datetime]:
    """An aware UTC time; None for what is none. `datetime.fromisoformat` takes neither `Z` nor nanoseconds on 3.9."""
    match = _RFC_3339.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, offset_hours, offset_minutes = match.groups()
    microsecond = int((fraction or "")[:6].ljust(6, "0"))
    try:
        time = datetime(
            int(year), int(month), int(day), int(hour), int(minute), int(second), microsecond, timezone.utc
        )
        if sign is None:
            return time
        offset = timedelta(hours=int(offset_hours), minutes=int(offset_minutes))
        return time - offset if sign == "+" else time + offset
    except (ValueError, OverflowError):
        return None


def required_time(value: Any) -> datetime:
    """The same where the wire promises a time; the epoch when it is unreadable, so that no list fails for one entry."""
    return parse_time(value) or datetime.fromtimestamp(0, timezone.utc)


def iso_time(time: Optional[datetime]) -> Optional[str]:
    """Ours to the wire's. A time without a zone is UTC."""
    if time is None:
        return None
    return (time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)).isoformat()
