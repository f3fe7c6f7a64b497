"""One request of the API: its parts, checked and encoded."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Dict, Mapping, Optional, Union
from urllib.parse import quote, urlencode

from ._upload_body import UploadBody
from .errors import InvalidRequestError

QueryValue = Union[str, int, bool, None]


class Unset(Enum):
    """The type of UNSET."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"


#: Default of arguments for which None means something: left out of the request, so that the server's default counts.
UNSET = Unset.UNSET


@dataclass
class Request:
    method: str
    #: Path below the base URL, its segments encoded.
    path: str
    query: Mapping[str, QueryValue] = field(default_factory=dict)
    json_body: Optional[bytes] = None
    upload: Optional[UploadBody] = None
    accept: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    #: None for the client's default, 0 for no limit.
    call_timeout_seconds: Optional[float] = None
    #: Sent with every POST, which makes it safe to repeat. None: random.
    idempotency_key: Optional[str] = None

    @property
    def target(self) -> str:
        """Path and query."""
        params = {name: _query_text(value) for name, value in self.query.items() if value is not None}
        if not params:
            return self.path
        try:
            return f"{self.path}?{urlencode(params, quote_via=quote)}"
        except UnicodeEncodeError as cause:
            raise invalid(
                f"a path or filter of {self.method} {self.path} cannot be written as UTF-8 ({cause})"
            ) from cause


def _query_text(value: Union[str, int, bool]) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def path_segment(name: str, value: Union[str, int]) -> str:
    """`value` as one segment of a path. Raises InvalidRequestError when it would address another resource."""
    text = str(value)
    if text in ("", ".", ".."):
        raise invalid(f"{name} must be a name or id; it is {text!r}", name)
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as cause:
        raise invalid(f"{name} must be a name or id; it is {text!r}", name) from cause


def json_fields(given: Mapping[str, Any], nullable: Mapping[str, Any] = {}) -> bytes:
    """A request body. Of `given`, what is None is left out; of `nullable`, what is UNSET."""
    body: Dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    body.update((name, value) for name, value in nullable.items() if value is not UNSET)
    for name, value in body.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise invalid(f"{name} must be a finite number; it is {value}", name)
        if isinstance(value, tuple):
            body[name] = list(value)
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError) as cause:
        raise invalid(f"the arguments ({', '.join(body)}) cannot be written as JSON: {cause}") from cause


def invalid(message: str, name: Optional[str] = None) -> InvalidRequestError:
    """An argument that is wrong by itself, whatever the server would say."""
    details = {} if name is None else {"issues": [{"path": name, "message": message}]}
    return InvalidRequestError(message, code="invalid_request", details=details)
