"""Webhooks: URLs that events are sent to."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, List, Mapping, Optional, Sequence

from ._answered_list import answered_list
from ._request import Request, json_fields, path_segment
from ._transport import Transport
from ._wire_time import parse_time, required_time
from .errors import NotFoundError


@dataclass(frozen=True)
class Webhook:
    """Its requests are proven with `verify_webhook`."""

    id: str
    url: str
    #: Types of events that are sent; empty for all.
    types: List[str]
    description: str
    #: Only this tenant's events are sent; None for all of the account's.
    tenant: Optional[str]
    enabled: bool
    #: Why the server disabled it; None when it did not.
    disabled_because: Optional[str]
    created_at: datetime
    #: Deliveries under way, or waiting for their next try.
    pending: int
    #: Deliveries given up after the last try.
    failed: int
    last_delivered_at: Optional[datetime]
    last_error: Optional[str]
    #: What its requests are signed with, of one just made; not shown by `repr`.
    secret: Optional[str] = field(default=None, repr=False)


class Webhooks:
    """`client.webhooks`; needs a key with the scope `admin`. One that is bound to a tenant has that tenant's alone."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self,
        url: str,
        *,
        types: Optional[Sequence[str]] = None,
        description: Optional[str] = None,
        idempotency_key: Optional[str] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> Webhook:
        """Makes a webhook for what happens from now on; its `secret` is shown this once.

        `url`: public and https, unless whoever runs the server has opened others. `types`: default all.
        """
        request = Request(
            "POST",
            "/v1/webhooks",
            json_body=json_fields(
                {"url": url, "types": None if types is None else list(types), "description": description}
            ),
            idempotency_key=idempotency_key,
            call_timeout_seconds=call_timeout_seconds,
        )
        return _webhook(self._transport.json(request))

    def list(self, *, call_timeout_seconds: Optional[float] = None) -> List[Webhook]:
        """The newest first."""
        request = Request("GET", "/v1/webhooks", call_timeout_seconds=call_timeout_seconds)
        return [_webhook(wire) for wire in answered_list(self._transport.json(request), "webhooks")]

    def get(self, id: str, *, call_timeout_seconds: Optional[float] = None) -> Webhook:
        """Raises NotFoundError."""
        request = Request("GET", _path(id), call_timeout_seconds=call_timeout_seconds)
        return _webhook(self._transport.json(request))

    def update(
        self,
        id: str,
        *,
        url: Optional[str] = None,
        types: Optional[Sequence[str]] = None,
        description: Optional[str] = None,
        enabled: Optional[bool] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> Webhook:
        """Changes what is given. Enabled again, it gets what happens from then on. Raises NotFoundError."""
        body = json_fields(
            {
                "url": url,
                "types": None if types is None else list(types),
                "description": description,
                "enabled": enabled,
            }
        )
        request = Request("PATCH", _path(id), json_body=body, call_timeout_seconds=call_timeout_seconds)
        return _webhook(self._transport.json(request))

    def remove(self, id: str, *, call_timeout_seconds: Optional[float] = None) -> bool:
        """Deletes it, and drops what was still to be sent to it. Returns False when there was none."""
        try:
            self._transport.text(Request("DELETE", _path(id), call_timeout_seconds=call_timeout_seconds))
        except NotFoundError:
            return False
        return True


def _webhook(wire: Mapping[str, Any]) -> Webhook:
    return Webhook(
        id=wire["id"],
        url=wire.get("url", ""),
        types=list(wire.get("types") or []),
        description=wire.get("description", ""),
        tenant=wire.get("tenant"),
        enabled=wire.get("enabled", True),
        disabled_because=wire.get("disabled_because"),
        created_at=required_time(wire.get("created_at")),
        pending=wire.get("pending", 0),
        failed=wire.get("failed", 0),
        last_delivered_at=parse_time(wire.get("last_delivered_at")),
        last_error=wire.get("last_error"),
        secret=wire.get("secret"),
    )


def _path(id: str) -> str:
    return f"/v1/webhooks/{path_segment('id', id)}"
