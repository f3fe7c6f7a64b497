"""One sandbox as a resource of the API."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

from ._request import Request, json_fields, path_segment
from ._transport import Transport
from .errors import TorporError
from .sandbox_info import SandboxInfo, sandbox_info


class SandboxResource:
    """What the parts of Sandbox share."""

    def __init__(self, transport: Transport, wire: Mapping[str, Any]) -> None:
        sandbox_id = wire.get("id")
        if not isinstance(sandbox_id, str):
            raise TorporError(
                "the server's answer is no sandbox: is it Torpor, of the same version as this client?",
                code="invalid_response",
            )
        self.id = sandbox_id
        self._transport = transport
        self._path = f"/v1/sandboxes/{path_segment('id', sandbox_id)}"
        self._info = sandbox_info(wire)

    @property
    def info(self) -> SandboxInfo:
        """What the server said of it last; `refresh()` asks again."""
        return self._info

    def _update(
        self,
        method: str,
        action: str,
        fields: Optional[Mapping[str, Any]],
        nullable: Mapping[str, Any],
        call_timeout_seconds: Optional[float],
    ) -> SandboxInfo:
        """A request that answers with the sandbox."""
        wire = self._ask(method, action, fields, nullable, call_timeout_seconds)
        self._info = sandbox_info(wire)
        return self._info

    def _ask(
        self,
        method: str,
        action: str,
        fields: Optional[Mapping[str, Any]],
        nullable: Mapping[str, Any],
        call_timeout_seconds: Optional[float],
        idempotency_key: Optional[str] = None,
    ) -> Dict[str, Any]:
        request = Request(
            method,
            f"{self._path}{action}",
            json_body=None if fields is None else json_fields(fields, nullable),
            call_timeout_seconds=call_timeout_seconds,
            idempotency_key=idempotency_key,
        )
        return self._transport.json(request)
