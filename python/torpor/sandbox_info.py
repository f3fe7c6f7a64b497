"""What the server knows of a sandbox."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Dict, List, Mapping, Optional

from ._wire_time import parse_time, required_time
from .network_policy import NetworkPolicy


@dataclass(frozen=True)
class AttestedStep:
    name: str
    #: `done`, `not_needed` or `failed`.
    outcome: str
    detail: Optional[str]
    #: Microseconds.
    duration_us: Optional[float]


@dataclass(frozen=True)
class Attestation:
    """What the guest did after it was restored from a snapshot, so that no two clones are alike."""

    generation: int
    steps: List[AttestedStep]
    clock_offset_ms: Optional[float]
    complete: bool


@dataclass(frozen=True)
class HibernationImage:
    """What a sleeping sandbox wakes from."""

    size_bytes: int
    created_at: datetime
    #: False: it holds its files alone, from which it boots.
    memory: bool = True


@dataclass(frozen=True)
class SandboxInfo:
    id: str
    name: Optional[str]
    #: `running`, `paused`, `hibernated`, `destroyed`, ...; those that end in `-ing` are transitions under way.
    state: str
    #: Why it ended (`user`, `ttl_expired`, `idle`, `oom`, `runtime_crashed`, ...); None while it lives.
    reason: Optional[str]
    template: str
    driver: str
    tenant: str
    persistent: bool
    metadata: Dict[str, str]
    #: Limit, cores.
    cpu: float
    memory_mb: int
    disk_mb: int
    #: `internet`, `none`, or `{"egress", "allow", "deny"}`.
    network: NetworkPolicy
    #: What happens at `expires_at`: `destroy` or `hibernate`.
    on_expire: str
    #: What happens at `idle_at`: `hibernate`, `pause`, `destroy` or `none`.
    on_idle: Optional[str]
    #: None for no limit.
    idle_timeout_seconds: Optional[int]
    #: How long a hibernation image is kept, seconds; None: until it is destroyed.
    retention_seconds: Optional[int]
    #: Whether a request that needs it running wakes it.
    auto_wake: bool
    #: Whether a hibernation keeps memory and processes where nothing else is said.
    hibernate_memory: bool
    #: Set while it is hibernated.
    image: Optional[HibernationImage]
    #: Counts its restores.
    generation: int
    host: Optional[str]
    created_at: datetime
    started_at: Optional[datetime]
    #: When its TTL ends; None without a TTL.
    expires_at: Optional[datetime]
    idle_at: Optional[datetime]
    last_activity_at: datetime
    ended_at: Optional[datetime]
    attestation: Optional[Attestation]


def sandbox_info(wire: Mapping[str, Any]) -> SandboxInfo:
    """A field that the server does not send has its default, so that both may be of different versions."""
    return SandboxInfo(
        id=wire["id"],
        name=wire.get("name"),
        state=wire.get("state", ""),
        reason=wire.get("reason"),
        template=wire.get("template", ""),
        driver=wire.get("driver", ""),
        tenant=wire.get("tenant", ""),
        persistent=bool(wire.get("persistent", False)),
        metadata=dict(wire.get("metadata") or {}),
        cpu=wire.get("cpu", 0),
        memory_mb=wire.get("memory_mb", 0),
        disk_mb=wire.get("disk_mb", 0),
        network=wire.get("network", ""),
        on_expire=wire.get("on_expire", "destroy"),
        on_idle=wire.get("on_idle"),
        idle_timeout_seconds=wire.get("idle_timeout_seconds"),
        retention_seconds=wire.get("retention_seconds"),
        auto_wake=bool(wire.get("auto_wake", True)),
        hibernate_memory=bool(wire.get("hibernate_memory", True)),
        image=_image(wire.get("image")),
        generation=wire.get("generation", 0),
        host=wire.get("host"),
        created_at=required_time(wire.get("created_at")),
        started_at=parse_time(wire.get("started_at")),
        expires_at=parse_time(wire.get("expires_at")),
        idle_at=parse_time(wire.get("idle_at")),
        last_activity_at=required_time(wire.get("last_activity_at")),
        ended_at=parse_time(wire.get("ended_at")),
        attestation=_attestation(wire.get("attestation")),
    )


def _image(wire: Optional[Mapping[str, Any]]) -> Optional[HibernationImage]:
    if not wire:
        return None
    return HibernationImage(
        size_bytes=wire.get("size_bytes", 0),
        created_at=required_time(wire.get("created_at")),
        memory=bool(wire.get("memory", True)),
    )


def _attestation(wire: Optional[Mapping[str, Any]]) -> Optional[Attestation]:
    if not wire:
        return None
    return Attestation(
        generation=wire.get("generation", 0),
        steps=[
            AttestedStep(
                name=step.get("name", ""),
                outcome=step.get("outcome", ""),
                detail=step.get("detail"),
                duration_us=step.get("duration_us"),
            )
            for step in wire.get("steps", [])
        ],
        clock_offset_ms=wire.get("clock_offset_ms"),
        complete=wire.get("complete") is True,
    )
