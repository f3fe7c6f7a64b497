"""Notebook kernels of a sandbox: each has variables of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Union

from ._answered_list import answered_list
from ._request import Request, json_fields, path_segment
from ._transport import Transport
from .errors import NotFoundError


@dataclass(frozen=True)
class CodeContext:
    id: str
    language: str
    #: Working directory.
    cwd: str


class CodeContexts:
    """`sandbox.code_contexts`. `run_code` without a context uses the default one of its language."""

    def __init__(self, transport: Transport, root: str) -> None:
        """`root` is the path of the sandbox's `code` resource."""
        self._transport = transport
        self._path = f"{root}/contexts"

    def create(
        self,
        *,
        language: Optional[str] = None,
        cwd: Optional[str] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> CodeContext:
        """Starts a kernel. `language`: default `python`."""
        request = Request(
            "POST",
            self._path,
            json_body=json_fields({"language": language, "cwd": cwd}),
            call_timeout_seconds=call_timeout_seconds,
        )
        return _context(self._transport.json(request))

    def list(self, *, call_timeout_seconds: Optional[float] = None) -> List[CodeContext]:
        request = Request("GET", self._path, call_timeout_seconds=call_timeout_seconds)
        return [_context(wire) for wire in answered_list(self._transport.json(request), "contexts")]

    def restart(
        self, context: Union[CodeContext, str], *, call_timeout_seconds: Optional[float] = None
    ) -> None:
        """Starts its kernel anew: its variables are gone. Raises NotFoundError."""
        request = Request("POST", f"{self._one(context)}/restart", call_timeout_seconds=call_timeout_seconds)
        self._transport.text(request)

    def remove(
        self, context: Union[CodeContext, str], *, call_timeout_seconds: Optional[float] = None
    ) -> bool:
        """Ends its kernel. Returns False when there was none."""
        try:
            self._transport.text(
                Request("DELETE", self._one(context), call_timeout_seconds=call_timeout_seconds)
            )
        except NotFoundError as error:
            if error.code == "sandbox_not_found":
                raise
            return False
        return True

    def _one(self, context: Union[CodeContext, str]) -> str:
        return f"{self._path}/{path_segment('context', context_id(context))}"


def context_id(context: Union[CodeContext, str]) -> str:
    return context if isinstance(context, str) else context.id


def _context(wire: Mapping[str, Any]) -> CodeContext:
    return CodeContext(id=wire["id"], language=wire.get("language", ""), cwd=wire.get("cwd", ""))
