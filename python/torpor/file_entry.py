"""One entry of a sandbox's file system."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Mapping, Optional

from ._wire_time import required_time


@dataclass(frozen=True)
class FileEntry:
    name: str
    path: str
    #: `file`, `dir`, `symlink` or `other`; of the target, when the entry is a symlink that resolves.
    type: str
    size_bytes: int
    #: Permission bits, e.g. 0o644.
    mode: int
    #: As `ls -l` writes them, e.g. `-rw-r--r--`.
    permissions: str
    owner: str
    group: str
    modified_at: datetime
    #: Fully resolved target, or None when the entry is no symlink.
    symlink_target: Optional[str]


def file_entry(wire: Mapping[str, Any]) -> FileEntry:
    return FileEntry(
        name=wire["name"],
        path=wire["path"],
        type=wire["type"],
        size_bytes=wire["size"],
        mode=wire.get("mode", 0),
        permissions=wire.get("permissions", ""),
        owner=wire.get("owner", ""),
        group=wire.get("group", ""),
        modified_at=required_time(wire.get("modified_at")),
        symlink_target=wire.get("symlink_target"),
    )
