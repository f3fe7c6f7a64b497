"""What was used, what it costs, and what may be spent."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ._request import QueryValue, Request, json_fields, path_segment
from ._transport import Transport
from ._wire_time import iso_time, required_time


@dataclass(frozen=True)
class UsageReport:
    since: datetime
    until: datetime
    #: `currency`, `vcpu_hour`, `memory_gib_hour`, `disk_gib_month`, `image_gib_month`.
    prices: Dict[str, Any]
    #: One for each combination of what is grouped by, which it names, with the sums of `total`.
    items: List[Dict[str, Any]]
    #: By the API's names: `seconds` in each state, `vcpu_seconds`, `memory_gib_seconds`, `disk_gib_seconds`, `image_gib_seconds`,
    #: `cpu_seconds`, `memory_peak_bytes`, `network_in_bytes`, `network_out_bytes`, `idle_seconds`, `currency`, `cost`,
    #: `saved_by_sleeping`, `wasted_by_idling`, `uncertain_seconds`.
    total: Dict[str, Any]


@dataclass(frozen=True)
class Budget:
    #: None for the account's own.
    tenant: Optional[str]
    amount: float
    #: `day` or `month`, UTC.
    period: str
    #: In this period.
    spent: float
    #: `ok`; `warned` from 80% on; `exhausted`: nothing is made or woken, and what was awake sleeps.
    state: str
    renews_at: datetime


class Usage:
    """`client.usage`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(
        self,
        *,
        since: Optional[datetime] = None,
        until: Optional[datetime] = None,
        group_by: Sequence[str] = ("tenant",),
        tenant: Optional[str] = None,
        template: Optional[str] = None,
        sandbox_id: Optional[str] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> UsageReport:
        """Sums by `group_by`: some of `account`, `tenant`, `template`, `sandbox`, `day`, `state`.

        From the first of this month (UTC) until now, unless told otherwise. What lies partly within counts in part.
        """
        query: Dict[str, QueryValue] = {
            "from": iso_time(since),
            "to": iso_time(until),
            "group_by": ",".join(group_by),
            "tenant": tenant,
            "template": template,
            "sandbox_id": sandbox_id,
        }
        wire = self._transport.json(
            Request("GET", "/v1/usage", query=query, call_timeout_seconds=call_timeout_seconds)
        )
        return UsageReport(
            since=required_time(wire.get("from")),
            until=required_time(wire.get("to")),
            prices=dict(wire.get("prices") or {}),
            items=[dict(item) for item in wire.get("items") or []],
            total=dict(wire.get("total") or {}),
        )

    def intervals(
        self, sandbox_id: str, *, call_timeout_seconds: Optional[float] = None
    ) -> List[Dict[str, Any]]:
        """The meter's intervals of one sandbox, by the API's names, oldest first. Raises NotFoundError."""
        path = f"/v1/sandboxes/{path_segment('sandbox_id', sandbox_id)}/usage"
        intervals: List[Dict[str, Any]] = []
        after: Optional[int] = 0
        while after is not None:
            request = Request(
                "GET", path, query={"after": after}, call_timeout_seconds=call_timeout_seconds
            )
            wire = self._transport.json(request)
            intervals += [dict(item) for item in wire.get("items") or []]
            after = wire.get("next_after")
        return intervals

    def prices(self, *, call_timeout_seconds: Optional[float] = None) -> Dict[str, Any]:
        """What the account of the key pays, by the API's names."""
        request = Request("GET", "/v1/prices", call_timeout_seconds=call_timeout_seconds)
        return dict(self._transport.json(request))

    def budgets(self, *, call_timeout_seconds: Optional[float] = None) -> List[Budget]:
        """The account's own budget and those of its tenants, with what is spent."""
        wire = self._transport.json(
            Request("GET", "/v1/budgets", call_timeout_seconds=call_timeout_seconds)
        )
        return [_budget(item) for item in wire.get("items") or []]

    def set_budget(
        self,
        amount: float,
        *,
        tenant: Optional[str] = None,
        period: str = "month",
        call_timeout_seconds: Optional[float] = None,
    ) -> Budget:
        """Sets what a tenant, or the whole account, may spend in a period; needs `admin`.

        At 80% of it an event `budget.warning` is written, at 100% `budget.exhausted`: then nothing is made or woken, and
        what is awake is hibernated, never destroyed.
        """
        request = Request(
            "PUT",
            _budget_path(tenant),
            json_body=json_fields({"amount": amount, "period": period}),
            call_timeout_seconds=call_timeout_seconds,
        )
        return _budget(self._transport.json(request))

    def remove_budget(
        self, *, tenant: Optional[str] = None, call_timeout_seconds: Optional[float] = None
    ) -> None:
        """Takes a budget off. Idempotent."""
        self._transport.text(
            Request("DELETE", _budget_path(tenant), call_timeout_seconds=call_timeout_seconds)
        )


def _budget_path(tenant: Optional[str]) -> str:
    if tenant is None:
        return "/v1/account/budget"
    return f"/v1/tenants/{path_segment('tenant', tenant)}/budget"


def _budget(wire: Mapping[str, Any]) -> Budget:
    return Budget(
        tenant=wire.get("tenant"),
        amount=wire["amount"],
        period=wire["period"],
        spent=wire["spent"],
        state=wire["state"],
        renews_at=required_time(wire.get("renews_at")),
    )
