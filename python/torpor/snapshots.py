"""Memory and disk of a sandbox at one instant."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Dict, Mapping, Optional

from ._request import QueryValue, Request, path_segment
from ._transport import Transport
from ._wire_time import required_time
from .errors import NotFoundError
from .paged_list import Page, PagedList, fetch_page


@dataclass(frozen=True)
class Snapshot:
    #: What `Sandbox.create(from_snapshot=...)` takes.
    id: str
    name: Optional[str]
    sandbox_id: str
    #: The only tenant it restores into.
    tenant: str
    template: str
    size_bytes: int
    #: Of the sandbox, when it was taken.
    generation: int
    created_at: datetime
    #: How long it is kept; None: until it is removed.
    retention_seconds: Optional[int]


class Snapshots:
    """`client.snapshots`. They are made by `sandbox.snapshot()`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(
        self,
        *,
        sandbox_id: Optional[str] = None,
        name: Optional[str] = None,
        tenant: Optional[str] = None,
        page_size: Optional[int] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> PagedList[Snapshot]:
        """Snapshots that meet all conditions, fetched page by page as they are iterated."""

        def fetch(cursor: Optional[str]) -> Page[Snapshot]:
            query: Dict[str, QueryValue] = {
                "sandbox_id": sandbox_id,
                "name": name,
                "tenant": tenant,
                "limit": page_size,
                "cursor": cursor,
            }
            return fetch_page(self._transport, "/v1/snapshots", query, snapshot, call_timeout_seconds)

        return PagedList(fetch)

    def get(self, id: str, *, call_timeout_seconds: Optional[float] = None) -> Snapshot:
        """Raises NotFoundError."""
        return snapshot(
            self._transport.json(Request("GET", _path(id), call_timeout_seconds=call_timeout_seconds))
        )

    def remove(self, id: str, *, call_timeout_seconds: Optional[float] = None) -> bool:
        """Removes a snapshot; sandboxes made from it live on. Returns False when there was none."""
        request = Request("DELETE", _path(id), call_timeout_seconds=call_timeout_seconds)
        try:
            self._transport.text(request)
        except NotFoundError:
            return False
        return True


def snapshot(wire: Mapping[str, Any]) -> Snapshot:
    return Snapshot(
        id=wire["id"],
        name=wire.get("name"),
        sandbox_id=wire.get("sandbox_id", ""),
        tenant=wire.get("tenant", ""),
        template=wire.get("template", ""),
        size_bytes=wire.get("size_bytes", 0),
        generation=wire.get("generation", 0),
        created_at=required_time(wire.get("created_at")),
        retention_seconds=wire.get("retention_seconds"),
    )


def _path(id: str) -> str:
    return f"/v1/snapshots/{path_segment('id', id)}"
