"""What runs in a sandbox."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, List, Mapping, Optional

from ._wire_time import parse_time


@dataclass(frozen=True)
class SandboxProcess:
    """A process that was started through the API and runs."""

    pid: int
    #: What `attach` and `kill` take; None for those started by other clients.
    exec_id: Optional[str]
    cmd: str
    args: List[str]
    cwd: Optional[str]
    user: Optional[str]
    tag: Optional[str]
    started_at: Optional[datetime]


def sandbox_process(wire: Mapping[str, Any]) -> SandboxProcess:
    return SandboxProcess(
        pid=wire["pid"],
        exec_id=wire.get("exec_id"),
        cmd=wire.get("cmd", ""),
        args=list(wire.get("args", [])),
        cwd=wire.get("cwd"),
        user=wire.get("user"),
        tag=wire.get("tag"),
        started_at=parse_time(wire.get("started_at")),
    )
