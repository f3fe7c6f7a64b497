"""The owner's own way to a port."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict


@dataclass(frozen=True)
class PortRequest:
    """How a program of the owner's reaches a port: any HTTP client, and with `ws:` in place of `http:` one for WebSockets."""

    url: str
    #: They hold the API key; not shown by `repr`.
    headers: Dict[str, str] = field(repr=False)
