"""Lists in answers."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from .errors import TorporError


def answered_list(answer: Mapping[str, Any], name: str) -> List[Dict[str, Any]]:
    """The list in an answer `{"items": [...]}` or `{name: [...]}`, whose elements must be objects of any shape."""
    items = answer.get(name, answer.get("items"))
    if isinstance(items, list) and all(isinstance(item, dict) for item in items):
        return items
    raise TorporError(
        f"the server's answer has no list of {name}: is it of the same version as this client?",
        code="invalid_response",
    )
