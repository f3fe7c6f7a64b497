"""What listens inside a sandbox, for visitors."""

from __future__ import annotations

from typing import List, Optional

from ._answered_list import answered_list
from ._request import Request, path_segment
from ._sandbox_resource import SandboxResource
from .errors import NotFoundError
from .port_request import PortRequest
from .preview_urls import PreviewUrl, preview_url


class SandboxPorts(SandboxResource):
    """The part of Sandbox about its ports. Programs inside must listen on 0.0.0.0, not on 127.0.0.1."""

    def port_request(self, port: int, path: str = "/") -> PortRequest:
        """URL and headers for requests of your own to a port; any method and body, any path behind the URL."""
        below = path if path.startswith("/") else f"/{path}"
        return PortRequest(
            url=f"{self._transport.connection.url}{self._path}/ports/{int(port)}{below}",
            headers=self._transport.authorization(),
        )

    def preview_url(
        self,
        port: int,
        *,
        expires_in_seconds: Optional[int] = None,
        auto_wake: Optional[bool] = None,
        idempotency_key: Optional[str] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> PreviewUrl:
        """Makes a URL that lets whoever has it reach this port; its `url` and `token` are shown this once.

        `expires_in_seconds`: counted from now; default 3,600, at most 30 days. `auto_wake`: whether a visit wakes the
        sandbox when it sleeps; default False.
        """
        fields = {"expires_in_seconds": expires_in_seconds, "auto_wake": auto_wake}
        path = f"/ports/{int(port)}/url"
        return preview_url(self._ask("POST", path, fields, {}, call_timeout_seconds, idempotency_key))

    def preview_urls(self, *, call_timeout_seconds: Optional[float] = None) -> List[PreviewUrl]:
        """The newest first, without their tokens."""
        answer = self._ask("GET", "/urls", None, {}, call_timeout_seconds)
        return [preview_url(wire) for wire in answered_list(answer, "urls")]

    def revoke_preview_url(self, id: str, *, call_timeout_seconds: Optional[float] = None) -> bool:
        """Ends a preview URL at once. Returns False when there was none."""
        path = f"{self._path}/urls/{path_segment('id', id)}"
        try:
            self._transport.text(Request("DELETE", path, call_timeout_seconds=call_timeout_seconds))
        except NotFoundError as error:
            if error.code == "not_found":
                return False
            raise
        return True
