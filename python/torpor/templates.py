"""What sandboxes are made from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Callable, List, Mapping, Optional

from ._answered_list import answered_list
from ._error_answers import error_from_fields
from ._ndjson import read_lines
from ._request import Request, path_segment
from ._transport import Transport
from ._wire_time import required_time
from .errors import ConnectionError, NotFoundError


@dataclass(frozen=True)
class Template:
    """A root filesystem with a golden snapshot to restore from."""

    name: str
    #: Content hash of recipe, guest agent and driver.
    hash: str
    description: str
    size_bytes: int
    built_at: datetime
    #: Drivers with a golden snapshot.
    golden: List[str]


@dataclass(frozen=True)
class BuildProgress:
    """How far a build is."""

    stage: str
    label: str
    #: Of the stage, 0 to 1.
    fraction: float


@dataclass(frozen=True)
class TemplateBuild:
    template: Template
    #: Whether it was there already.
    cached: bool


class Templates:
    """`client.templates`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, *, call_timeout_seconds: Optional[float] = None) -> List[Template]:
        """Templates that can be used."""
        answer = self._transport.json(
            Request("GET", "/v1/templates", call_timeout_seconds=call_timeout_seconds)
        )
        return [_template(wire) for wire in answered_list(answer, "templates")]

    def get(self, name: str, *, call_timeout_seconds: Optional[float] = None) -> Template:
        """Raises NotFoundError `template_not_found`."""
        return _template(
            self._transport.json(Request("GET", _path(name), call_timeout_seconds=call_timeout_seconds))
        )

    def build(
        self,
        name: str,
        *,
        image: Optional[str] = None,
        on_progress: Optional[Callable[[BuildProgress], object]] = None,
        call_timeout_seconds: float = 0,
    ) -> TemplateBuild:
        """
        Builds a template, or finds it built. It takes the time it takes (minutes) unless a limit is given. `image`: make
        it from this container image instead of a recipe: `oci:DIR[:IMAGE]`, `docker-archive:FILE[:IMAGE]`,
        `oci-archive:FILE[:IMAGE]` or a bare path, on the host's machine; else the name of an image, local or at a registry.
        """
        request = Request(
            "POST",
            f"{_path(name)}/build",
            query={"image": image},
            accept="application/x-ndjson",
            call_timeout_seconds=call_timeout_seconds,
        )
        opened = self._transport.open(request)
        build: Optional[TemplateBuild] = None
        try:
            for line in read_lines(opened, f"building {name}"):
                kind = line.get("type")
                if kind == "progress" and on_progress is not None:
                    on_progress(_progress(line))
                elif kind == "done":
                    build = TemplateBuild(_template(line["template"]), line.get("cached") is True)
                elif kind == "error" or "error" in line:
                    raise error_from_fields(line)
        finally:
            opened.answer.close()
        if build is None:
            raise ConnectionError(
                f"the server stopped telling of the build of {name}: see its log, and build again",
                code="connection_lost",
                retryable=True,
            )
        return build

    def remove(self, name: str, *, call_timeout_seconds: Optional[float] = None) -> bool:
        """Removes a template; sandboxes made from it live on. Returns False when there was none."""
        try:
            self._transport.text(Request("DELETE", _path(name), call_timeout_seconds=call_timeout_seconds))
        except NotFoundError as error:
            if error.code == "template_not_found":
                return False
            raise
        return True


def _path(name: str) -> str:
    return f"/v1/templates/{path_segment('name', name)}"


def _progress(wire: Mapping[str, Any]) -> BuildProgress:
    return BuildProgress(
        str(wire.get("stage", "")), str(wire.get("label", "")), float(wire.get("fraction", 0))
    )


def _template(wire: Mapping[str, Any]) -> Template:
    return Template(
        name=wire["name"],
        hash=wire.get("hash", ""),
        description=wire.get("description", ""),
        size_bytes=wire.get("size_bytes", 0),
        built_at=required_time(wire.get("built_at")),
        golden=list(wire.get("golden", [])),
    )
