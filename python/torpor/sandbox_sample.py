"""What a sandbox uses over time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Mapping

from ._wire_time import required_time


@dataclass(frozen=True)
class SandboxSample:
    """What a sandbox used at one moment, as its host sees it."""

    at: datetime
    #: Since the sample before; 100: all the CPU it may have.
    cpu_used_percent: float
    #: Without what can be let go of; its runtime's own, 20 to 40 MiB, is in it.
    memory_used_bytes: int
    #: Pages of files, which can be let go of.
    memory_cache_bytes: int
    #: What its changes to the file system take on the host.
    disk_used_bytes: int


def sandbox_sample(wire: Mapping[str, Any]) -> SandboxSample:
    return SandboxSample(
        at=required_time(wire.get("at")),
        cpu_used_percent=wire["cpu_used_percent"],
        memory_used_bytes=wire["memory_used_bytes"],
        memory_cache_bytes=wire["memory_cache_bytes"],
        disk_used_bytes=wire["disk_used_bytes"],
    )
