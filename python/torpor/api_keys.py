"""API keys."""

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
class ApiKey:
    """What is known of an API key; the key itself is shown once, when it is made."""

    id: str
    name: str
    #: First characters of the key.
    prefix: str
    account: str
    #: The only tenant it may act for; None for all.
    tenant: Optional[str]
    #: Of `sandbox:read`, `sandbox:write`, `sandbox:exec`, `template:write`, `admin`, `operator`.
    scopes: List[str]
    created_at: datetime
    expires_at: Optional[datetime]
    last_used_at: Optional[datetime]
    revoked_at: Optional[datetime]
    #: The key itself, of one just made; not shown by `repr`.
    key: Optional[str] = field(default=None, repr=False)


class ApiKeys:
    """`client.keys`; needs a key with the scope `admin`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(
        self, *, account: Optional[str] = None, call_timeout_seconds: Optional[float] = None
    ) -> List[ApiKey]:
        """The newest first, revoked ones too.

        `account`: default that of the key that asks; another needs a key with the scope `operator`.
        """
        request = Request(
            "GET", "/v1/keys", query={"account": account}, call_timeout_seconds=call_timeout_seconds
        )
        answer = self._transport.json(request)
        return [_api_key(wire) for wire in answered_list(answer, "keys")]

    def get(self, id: str, *, call_timeout_seconds: Optional[float] = None) -> ApiKey:
        """What is known of one, never the key itself. Raises NotFoundError."""
        path = f"/v1/keys/{path_segment('id', id)}"
        return _api_key(self._transport.json(Request("GET", path, call_timeout_seconds=call_timeout_seconds)))

    def create(
        self,
        name: str,
        *,
        account: Optional[str] = None,
        tenant: Optional[str] = None,
        scopes: Optional[Sequence[str]] = None,
        expires_in_seconds: Optional[int] = None,
        idempotency_key: Optional[str] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> ApiKey:
        """Makes a key; its `key` is shown this once.

        `scopes`: default read, write and exec of sandboxes. `account`: default that of the key that asks; another needs
        a key with the scope `operator`.
        """
        body = json_fields(
            {
                "name": name,
                "account": account,
                "tenant": tenant,
                "scopes": None if scopes is None else list(scopes),
                "expires_in_seconds": expires_in_seconds,
            }
        )
        request = Request(
            "POST",
            "/v1/keys",
            json_body=body,
            idempotency_key=idempotency_key,
            call_timeout_seconds=call_timeout_seconds,
        )
        return _api_key(self._transport.json(request))

    def revoke(self, id: str, *, call_timeout_seconds: Optional[float] = None) -> bool:
        """Ends a key at once. Returns False when there was none."""
        path = f"/v1/keys/{path_segment('id', id)}"
        try:
            self._transport.text(Request("DELETE", path, call_timeout_seconds=call_timeout_seconds))
        except NotFoundError:
            return False
        return True


def _api_key(wire: Mapping[str, Any]) -> ApiKey:
    return ApiKey(
        id=wire["id"],
        name=wire.get("name", ""),
        prefix=wire.get("prefix", ""),
        account=wire.get("account", ""),
        tenant=wire.get("tenant"),
        scopes=list(wire.get("scopes", [])),
        created_at=required_time(wire.get("created_at")),
        expires_at=parse_time(wire.get("expires_at")),
        last_used_at=parse_time(wire.get("last_used_at")),
        revoked_at=parse_time(wire.get("revoked_at")),
        key=wire.get("key"),
    )
