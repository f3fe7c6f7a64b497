"""URLs that let visitors reach a port of a sandbox."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Mapping, Optional

from ._wire_time import parse_time, required_time


@dataclass(frozen=True)
class PreviewUrl:
    """Whoever has the URL reaches one port of one sandbox, until it expires, is revoked, or the sandbox ends."""

    id: str
    sandbox_id: str
    port: int
    #: Host name and port of the preview's own web origin.
    host: str
    #: Whether a visit wakes the sandbox.
    auto_wake: bool
    created_at: datetime
    expires_at: datetime
    revoked_at: Optional[datetime]
    #: To be opened in a browser, of one just made; not shown by `repr`.
    url: Optional[str] = field(default=None, repr=False)
    #: For programs, which send it to `host` as `X-Torpor-Token`; of one just made.
    token: Optional[str] = field(default=None, repr=False)


def preview_url(wire: Mapping[str, Any]) -> PreviewUrl:
    return PreviewUrl(
        id=wire["id"],
        sandbox_id=wire.get("sandbox_id", ""),
        port=wire.get("port", 0),
        host=wire.get("host", ""),
        auto_wake=wire.get("auto_wake", False),
        created_at=required_time(wire.get("created_at")),
        expires_at=required_time(wire.get("expires_at")),
        revoked_at=parse_time(wire.get("revoked_at")),
        url=wire.get("url"),
        token=wire.get("token"),
    )
