"""Accounts: who has API keys and sandboxes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Dict, Mapping, Optional

from ._request import QueryValue, Request, json_fields, path_segment
from ._transport import Transport
from ._wire_time import required_time
from .paged_list import Page, PagedList, fetch_page


@dataclass(frozen=True)
class Account:
    id: str
    created_at: datetime
    #: What it may have at most, by the API's names, such as `max_lifetime_seconds`; None for no limit of its own.
    limits: Dict[str, Any]
    #: What each of its tenants may have.
    tenant_limits: Dict[str, Any]
    #: What it has now: `sandboxes`, `sandboxes_awake`, `cpu`, `memory_mb`, `disk_mb`, `image_bytes`, `creates_per_minute`.
    usage: Dict[str, Any]


@dataclass(frozen=True)
class TenantUsage:
    """A tenant's share of its account, by the names of `Account`."""

    tenant: str
    limits: Dict[str, Any]
    usage: Dict[str, Any]


class Accounts:
    """`client.accounts`.

    All needs a key with the scope `operator`, but `own`, and `get` of one's own: `admin`; and `tenant`.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def own(self, *, call_timeout_seconds: Optional[float] = None) -> Account:
        """The account of the key that asks."""
        return _account(
            self._transport.json(Request("GET", "/v1/account", call_timeout_seconds=call_timeout_seconds))
        )

    def get(self, id: str, *, call_timeout_seconds: Optional[float] = None) -> Account:
        """Raises NotFoundError, also for one that the key may not see."""
        return _account(
            self._transport.json(Request("GET", _path(id), call_timeout_seconds=call_timeout_seconds))
        )

    def list(
        self, *, page_size: Optional[int] = None, call_timeout_seconds: Optional[float] = None
    ) -> PagedList[Account]:
        """The newest first, fetched page by page as they are iterated."""

        def fetch(cursor: Optional[str]) -> Page[Account]:
            query: Dict[str, QueryValue] = {"limit": page_size, "cursor": cursor}
            return fetch_page(self._transport, "/v1/accounts", query, _account, call_timeout_seconds)

        return PagedList(fetch)

    def create(
        self,
        id: str,
        *,
        limits: Optional[Mapping[str, Any]] = None,
        tenant_limits: Optional[Mapping[str, Any]] = None,
        idempotency_key: Optional[str] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> Account:
        """Makes an account, without keys: `client.keys.create(..., account=id, scopes=["admin"])` makes its first.

        Raises ConflictError when there is one of that name.
        """
        request = Request(
            "POST",
            "/v1/accounts",
            json_body=json_fields(
                {"id": id, "limits": dict(limits or {}), "tenant_limits": dict(tenant_limits or {})}
            ),
            idempotency_key=idempotency_key,
            call_timeout_seconds=call_timeout_seconds,
        )
        return _account(self._transport.json(request))

    def set_limits(
        self,
        id: str,
        *,
        tenant_limits: Optional[Mapping[str, Any]] = None,
        call_timeout_seconds: Optional[float] = None,
        **limits: Any,
    ) -> Account:
        """Sets some limits and leaves the others; None takes one away. They count from the next create on.

        `limits` by their names, such as `sandboxes_awake=10`; `tenant_limits`: of each of its tenants.
        """
        request = Request(
            "PATCH",
            _path(id),
            json_body=json_fields({"limits": limits, "tenant_limits": dict(tenant_limits or {})}),
            call_timeout_seconds=call_timeout_seconds,
        )
        return _account(self._transport.json(request))

    def tenant(self, tenant: str, *, call_timeout_seconds: Optional[float] = None) -> TenantUsage:
        """What a tenant of the key's account has and may have; needs `sandbox:read`."""
        path = f"/v1/tenants/{path_segment('tenant', tenant)}"
        wire = self._transport.json(Request("GET", path, call_timeout_seconds=call_timeout_seconds))
        return TenantUsage(
            tenant=wire["tenant"],
            limits=dict(wire.get("limits") or {}),
            usage=dict(wire.get("usage") or {}),
        )


def _account(wire: Mapping[str, Any]) -> Account:
    return Account(
        id=wire["id"],
        created_at=required_time(wire.get("created_at")),
        limits=dict(wire.get("limits") or {}),
        tenant_limits=dict(wire.get("tenant_limits") or {}),
        usage=dict(wire.get("usage") or {}),
    )


def _path(id: str) -> str:
    return f"/v1/accounts/{path_segment('id', id)}"
