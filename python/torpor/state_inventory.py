"""What `sandbox.state()` and `sandbox.lifecycle()` give: the wire's own names, as dictionaries. Times are RFC 3339."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, TypedDict


class ChangedFile(TypedDict):
    path: str
    size: int
    modified_at: str


class ChangedFiles(TypedDict):
    """Files changed since the template; `truncated` when the sample does not hold them all."""

    changed_count: int
    changed_bytes: int
    sample: List[ChangedFile]
    truncated: bool


class Package(TypedDict):
    name: str
    version: str


class Packages(TypedDict):
    """Packages added since the template."""

    pip: List[Package]
    npm: List[Package]
    apt: List[Package]


class Cache(TypedDict):
    path: str
    size_bytes: int


class MemoryProcess(TypedDict):
    pid: int
    command: str
    rss_bytes: int
    started_at: str


class MemoryState(TypedDict):
    rss_bytes: int
    processes: List[MemoryProcess]
    kernels: List[Dict[str, Any]]


class Connections(TypedDict):
    listening: List[Dict[str, Any]]
    loopback: List[Dict[str, Any]]
    external: List[Dict[str, Any]]


class BrowserProfile(TypedDict):
    path: str
    browser: str
    size_bytes: int


class BrowserState(TypedDict):
    profiles: List[BrowserProfile]


class Survival(TypedDict):
    #: `all`, `some` or `none`.
    survives: str
    lost: List[str]
    reason: str


class SurvivalByKind(TypedDict):
    files: Survival
    packages: Survival
    caches: Survival
    memory: Survival
    connections: Survival
    browser: Survival


class Forecast(TypedDict):
    """What survives each operation."""

    pause: SurvivalByKind
    hibernate: SurvivalByKind
    fork: SurvivalByKind
    destroy: SurvivalByKind


class StateInventory(TypedDict):
    """The six kinds of state a sandbox holds now, and what would become of them."""

    sandbox_id: str
    generation: int
    taken_at: str
    files: ChangedFiles
    packages: Packages
    caches: List[Cache]
    memory: MemoryState
    connections: Connections
    browser: BrowserState
    forecast: Forecast


class LifecycleHold(TypedDict, total=False):
    """A reason why the sandbox is not idle."""

    #: `request`, `port` or `exec`.
    kind: str
    #: Method and path, or the exec id of a command.
    what: str
    since: str


class LastActivity(TypedDict):
    #: `request`, `port`, `exec`, `create`, `wake`, `resume`, `snapshot` or `adopt`.
    kind: str
    what: str


class Lifecycle(TypedDict):
    #: By name: `ttl`, `idle`, `retention`, `max_lifetime`.
    clocks: Dict[str, Dict[str, Any]]
    last_activity_at: str
    #: None when its host cannot tell.
    last_activity: Optional[LastActivity]
    holds: List[LifecycleHold]
    reaped_because: Optional[str]
