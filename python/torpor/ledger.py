"""Who held what, and proof of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Dict, Iterator, List, Mapping, Optional

from ._ndjson import read_lines
from ._request import QueryValue, Request
from ._transport import Transport
from ._wire_time import required_time
from .paged_list import Page, PagedList, fetch_page


@dataclass(frozen=True)
class LedgerEntry:
    """What was bound to a tenant, given back, or refused."""

    #: Its place in the chain.
    seq: int
    at: datetime
    #: `bind`, `release` or `deny`.
    action: str
    account: str
    tenant: Optional[str]
    sandbox_id: Optional[str]
    generation: Optional[int]
    host: Optional[str]
    #: Id of an API key, or `system:` and what of Torpor did it.
    actor: str
    reason: str
    #: By the API's names: `kind` (`sandbox`, `machine`, `address`, `snapshot` or `image`), `id`, and what goes with the kind.
    resources: List[Dict[str, Any]]
    #: Of a denial: what was asked, and how often since the one before.
    route: Optional[str]
    count: Optional[int]
    hash: str
    #: Hash of the entry before it, which may be another tenant's.
    prev: str


class Ledger:
    """`client.ledger`. `torpor ledger verify` checks what `export` gives."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(
        self,
        *,
        sandbox_id: Optional[str] = None,
        tenant: Optional[str] = None,
        page_size: Optional[int] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> PagedList[LedgerEntry]:
        """Entries about one's own tenants, the newest first, fetched page by page as they are iterated.

        `page_size`: default 50, at most 200.
        """

        def fetch(cursor: Optional[str]) -> Page[LedgerEntry]:
            query: Dict[str, QueryValue] = {
                "sandbox_id": sandbox_id,
                "tenant": tenant,
                "limit": page_size,
                "cursor": cursor,
            }
            return fetch_page(self._transport, "/v1/ledger", query, _ledger_entry, call_timeout_seconds)

        return PagedList(fetch)

    def checkpoint(self, *, call_timeout_seconds: Optional[float] = None) -> Dict[str, Any]:
        """How far the ledger goes, signed, by the API's names; needs `operator`.

        Kept where the server cannot reach it, it shows later that nothing before it was changed or cut off.
        """
        request = Request("GET", "/v1/ledger/checkpoint", call_timeout_seconds=call_timeout_seconds)
        return dict(self._transport.json(request))

    def export(self, *, call_timeout_seconds: Optional[float] = None) -> Iterator[Dict[str, Any]]:
        """The whole ledger, of all accounts, as it is to be kept and verified; needs `operator`.

        One object for each line of the file: the first says how far it goes. `call_timeout_seconds` is the longest time
        without progress. Raises ConnectionError when it is cut off.
        """
        request = Request(
            "GET",
            "/v1/ledger/export",
            accept="application/x-ndjson",
            call_timeout_seconds=call_timeout_seconds,
        )
        open_answer = self._transport.open(request)
        try:
            yield from read_lines(open_answer, "exporting the ledger")
        finally:
            open_answer.answer.close()


def _ledger_entry(wire: Mapping[str, Any]) -> LedgerEntry:
    return LedgerEntry(
        seq=wire["seq"],
        at=required_time(wire.get("at")),
        action=wire["action"],
        account=wire["account"],
        tenant=wire.get("tenant"),
        sandbox_id=wire.get("sandbox_id"),
        generation=wire.get("generation"),
        host=wire.get("host"),
        actor=wire["actor"],
        reason=wire["reason"],
        resources=[dict(resource) for resource in wire.get("resources") or []],
        route=wire.get("route"),
        count=wire.get("count"),
        hash=wire["hash"],
        prev=wire["prev"],
    )
