"""Lists that come in pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, Generic, Iterator, List, Mapping, Optional, TypeVar

from ._answered_list import answered_list
from ._request import QueryValue, Request
from ._transport import Transport
from .errors import TorporError

Item = TypeVar("Item")


@dataclass(frozen=True)
class Page(Generic[Item]):
    items: List[Item]
    #: Gives the next page; None on the last one.
    next_cursor: Optional[str]


class PagedList(Generic[Item]):
    """A list that is fetched page by page as it is iterated. Each iteration starts from the beginning."""

    def __init__(self, fetch_page: Callable[[Optional[str]], Page[Item]]) -> None:
        self._fetch_page = fetch_page

    def page(self, cursor: Optional[str] = None) -> Page[Item]:
        """One page: the first, or the one after `cursor` (a page's `next_cursor`)."""
        return self._fetch_page(cursor)

    def pages(self) -> Iterator[Page[Item]]:
        """All pages."""
        cursor: Optional[str] = None
        while True:
            page = self._fetch_page(cursor)
            yield page
            if page.next_cursor is None:
                return
            if page.next_cursor == cursor:
                raise TorporError(
                    "the server gave the same list cursor twice: the list would never end",
                    code="invalid_response",
                )
            cursor = page.next_cursor

    def __iter__(self) -> Iterator[Item]:
        for page in self.pages():
            yield from page.items


def fetch_page(
    transport: Transport,
    path: str,
    query: Mapping[str, QueryValue],
    make: Callable[[Dict[str, Any]], Item],
    call_timeout_seconds: Optional[float],
) -> Page[Item]:
    """One page of a list of the API."""
    answer = transport.json(Request("GET", path, query=query, call_timeout_seconds=call_timeout_seconds))
    return Page([make(wire) for wire in answered_list(answer, "items")], answer.get("next_cursor"))
