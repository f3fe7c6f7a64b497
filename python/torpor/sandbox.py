"""A sandbox: where commands run and files live."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Type, Union

from ._create_request import CREATE_SECONDS, MaybeSeconds, create_body, create_sandbox
from ._error_answers import error_from_fields
from ._request import UNSET, QueryValue, Request, invalid, json_fields, path_segment
from ._answered_list import answered_list
from ._sandbox_execution import SandboxExecution
from ._sandbox_ports import SandboxPorts
from ._sandbox_lifecycle import LONG_SECONDS, OnExpire, OnIdle, SandboxLifecycle
from ._transport import Transport
from .advice import Advice, TakenAdvice, advice, taken_advice
from .client import Torpor, transport_of
from .errors import TorporError
from .exploration import Candidate, Exploration, explore
from .filesystem import SandboxFilesystem
from .fork_result import ForkResult
from .network_policy import Network, network_wire
from .paged_list import Page, PagedList, fetch_page



class Sandbox(SandboxExecution, SandboxLifecycle, SandboxPorts):
    """Made by `create`, `get`, `list` and `session`. Safe to use from several threads.

    A `with` block destroys an ephemeral sandbox at its end, also when something raises. A persistent one outlives the
    block: only its owner's `destroy()` ends it.

    Where a server is found: `client`, else `url` and `api_key`, else the environment (`TORPOR_URL`, `TORPOR_API_KEY`,
    `TORPOR_STATE_DIR`), else the local instance.
    """

    def __init__(
        self, transport: Transport, wire: Mapping[str, Any], *, is_new: Optional[bool] = None
    ) -> None:
        super().__init__(transport, wire)
        self.filesystem = SandboxFilesystem(transport, f"{self._path}/fs")
        #: Whether the call that gave this object made the sandbox; None when it does not say (`get`, `list`).
        self.is_new = is_new
        #: What was advised when it was made with `lifecycle="auto"`; None otherwise.
        self.advice: Optional[TakenAdvice] = taken_advice(wire.get("advice"))

    @classmethod
    def advise(
        cls,
        *,
        survives: Union[bool, Sequence[str], None] = None,
        untrusted: Optional[bool] = None,
        interactive: Optional[bool] = None,
        single_tenant: Optional[bool] = None,
        idle_gap_seconds: Optional[float] = None,
        setup_seconds: Optional[float] = None,
        memory_mb: Optional[int] = None,
        uses_per_day: Optional[float] = None,
        use_seconds: Optional[float] = None,
        sandbox_id: Optional[str] = None,
        template: Optional[str] = None,
        call_timeout_seconds: Optional[float] = None,
        client: Optional[Torpor] = None,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
    ) -> Advice:
        """Which shape a workload should have, why, and what each alternative costs a day. Makes nothing.

        What is left out is unknown. `survives`: whether anything must survive between uses, or which kinds of state.
        `untrusted`: whether you do not trust the code. `interactive`: whether somebody waits. `single_tenant`: whether it
        would only ever hold one tenant's data. `idle_gap_seconds`: from one use to the next. `setup_seconds`: to make a
        fresh one useful. `use_seconds`: how long one use takes, default 60. `sandbox_id`: one of yours, whose measured
        facts count. `template`: default `code-interpreter`.

        Raises InvalidRequestError naming the argument, NotFoundError `sandbox_not_found`.
        """
        transport = transport_of(client, url, api_key)
        given = {
            "survives": survives if survives is None or isinstance(survives, bool) else list(survives),
            "untrusted": untrusted,
            "interactive": interactive,
            "single_tenant": single_tenant,
            "idle_gap_seconds": idle_gap_seconds,
            "setup_seconds": setup_seconds,
            "memory_mb": memory_mb,
            "uses_per_day": uses_per_day,
            "use_seconds": use_seconds,
            "sandbox_id": sandbox_id,
            "template": template,
        }
        request = Request(
            "POST", "/v1/advise", json_body=json_fields(given), call_timeout_seconds=call_timeout_seconds
        )
        return advice(transport.json(request))

    @classmethod
    def create(
        cls,
        *,
        template: Optional[str] = None,
        ttl_seconds: MaybeSeconds = UNSET,
        persistent: Optional[bool] = None,
        tenant: Optional[str] = None,
        name: Optional[str] = None,
        metadata: Optional[Mapping[str, str]] = None,
        env: Optional[Mapping[str, str]] = None,
        secrets: Optional[Mapping[str, str]] = None,
        cpu: Optional[float] = None,
        memory_mb: Optional[int] = None,
        disk_mb: Optional[int] = None,
        network: Optional[Network] = None,
        idle_timeout_seconds: MaybeSeconds = UNSET,
        on_idle: Optional[OnIdle] = None,
        on_expire: Optional[OnExpire] = None,
        retention_seconds: MaybeSeconds = UNSET,
        auto_wake: Optional[bool] = None,
        hibernate_memory: Optional[bool] = None,
        from_snapshot: Optional[str] = None,
        lifecycle: Optional[str] = None,
        workload: Optional[Mapping[str, Any]] = None,
        accept_risk: Optional[bool] = None,
        idempotency_key: Optional[str] = None,
        call_timeout_seconds: Optional[float] = None,
        client: Optional[Torpor] = None,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
    ) -> "Sandbox":
        """Creates a sandbox, ready to use: its first exec works.

        `template`: default `code-interpreter`. `ttl_seconds`: wall-clock seconds until `on_expire`, counted from now or
        from the last `set_ttl`; default 300, none when persistent. `persistent`: lives until its owner destroys it,
        asleep when idle; needs `tenant`, or `tenant_id` in the metadata. `tenant`: whose data is inside; default the
        account. `metadata`: labels to find it by. `env`: environment of everything that runs in it. `secrets`:
        environment too, whose values no answer, event, log or error tells; kept over sleep, for forks and for sandboxes
        made from its snapshots. `cpu`: limit in cores, default 1. `memory_mb`: default 1024. `disk_mb`: default 4096.
        `network`: what it may reach, see `set_network`; default `internet`, public addresses only.
        `idle_timeout_seconds`: without owner activity until `on_idle`; default none, 300 when
        persistent. `on_idle`: default `hibernate`. `on_expire`: default `destroy`. `retention_seconds`: how long a
        hibernation image is kept; default for good. `auto_wake`: whether work wakes it; default True.
        `hibernate_memory`: whether a hibernation keeps memory and processes; default True, see `hibernate`.
        `from_snapshot`: id of the snapshot to restore instead of a template. Of the three clocks None means no limit. `lifecycle="auto"`:
        shape and clocks are as `advise` has them for `workload` (its arguments, as a mapping), but for what is given here;
        `sandbox.advice` tells. `accept_risk`: keeps code that the workload calls untrusted in a persistent sandbox.

        `idempotency_key`: the same key and arguments within 24 hours give the same sandbox. `call_timeout_seconds`:
        default 120; a create that ran out of it, or was interrupted, is undone.

        Raises InvalidRequestError naming the argument, NotFoundError `template_not_found`, CapacityError,
        ConfigurationError.
        """
        transport = transport_of(client, url, api_key)
        given = {
            "template": template,
            "persistent": persistent,
            "tenant": tenant,
            "name": name,
            "metadata": metadata,
            "env": env,
            "secrets": secrets,
            "cpu": cpu,
            "memory_mb": memory_mb,
            "disk_mb": disk_mb,
            "network": None if network is None else network_wire(network),
            "on_idle": on_idle,
            "on_expire": on_expire,
            "auto_wake": auto_wake,
            "hibernate_memory": hibernate_memory,
            "from_snapshot": from_snapshot,
            "lifecycle": lifecycle,
            "workload": None if workload is None else dict(workload),
            "accept_risk": accept_risk,
        }
        body = create_body(
            given,
            ttl_seconds=ttl_seconds,
            idle_timeout_seconds=idle_timeout_seconds,
            retention_seconds=retention_seconds,
        )
        wire = create_sandbox(transport, body, idempotency_key, call_timeout_seconds)
        return cls(transport, wire, is_new=True)

    @classmethod
    def session(
        cls,
        *,
        tenant: str,
        key: str,
        template: Optional[str] = None,
        ttl_seconds: MaybeSeconds = UNSET,
        persistent: Optional[bool] = None,
        name: Optional[str] = None,
        metadata: Optional[Mapping[str, str]] = None,
        env: Optional[Mapping[str, str]] = None,
        secrets: Optional[Mapping[str, str]] = None,
        cpu: Optional[float] = None,
        memory_mb: Optional[int] = None,
        disk_mb: Optional[int] = None,
        network: Optional[Network] = None,
        idle_timeout_seconds: MaybeSeconds = UNSET,
        on_idle: Optional[OnIdle] = None,
        on_expire: Optional[OnExpire] = None,
        retention_seconds: MaybeSeconds = UNSET,
        auto_wake: Optional[bool] = None,
        hibernate_memory: Optional[bool] = None,
        from_snapshot: Optional[str] = None,
        lifecycle: Optional[str] = None,
        workload: Optional[Mapping[str, Any]] = None,
        accept_risk: Optional[bool] = None,
        idempotency_key: Optional[str] = None,
        call_timeout_seconds: Optional[float] = None,
        client: Optional[Torpor] = None,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
    ) -> "Sandbox":
        """That tenant's sandbox for that key, awake: the one there is, else a new one. `is_new` says which.

        One call, however many ask at once. `key`: 1 to 256 characters of your own, e.g. a chat's id. The other
        arguments are those of `create` and count when it is made: one there is keeps its `env`, `secrets` and the rest,
        and those given are not applied. `persistent` is True unless given.
        """
        transport = transport_of(client, url, api_key)
        given = {
            "tenant": tenant,
            "key": key,
            "template": template,
            "persistent": persistent,
            "name": name,
            "metadata": metadata,
            "env": env,
            "secrets": secrets,
            "cpu": cpu,
            "memory_mb": memory_mb,
            "disk_mb": disk_mb,
            "network": None if network is None else network_wire(network),
            "on_idle": on_idle,
            "on_expire": on_expire,
            "auto_wake": auto_wake,
            "hibernate_memory": hibernate_memory,
            "from_snapshot": from_snapshot,
            "lifecycle": lifecycle,
            "workload": None if workload is None else dict(workload),
            "accept_risk": accept_risk,
        }
        body = create_body(
            given,
            ttl_seconds=ttl_seconds,
            idle_timeout_seconds=idle_timeout_seconds,
            retention_seconds=retention_seconds,
        )
        request = Request(
            "POST",
            "/v1/sessions",
            json_body=body,
            idempotency_key=idempotency_key,
            call_timeout_seconds=CREATE_SECONDS if call_timeout_seconds is None else call_timeout_seconds,
        )
        answer = transport.json(request)
        wire = answer.get("sandbox")
        made = cls(transport, wire if isinstance(wire, dict) else {}, is_new=answer.get("created") is True)
        made.advice = taken_advice(answer.get("advice"))
        return made

    @classmethod
    def get(
        cls,
        id: str,
        *,
        call_timeout_seconds: Optional[float] = None,
        client: Optional[Torpor] = None,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
    ) -> "Sandbox":
        """A sandbox by its id; an ended one too, for 7 days. Raises NotFoundError `sandbox_not_found`."""
        transport = transport_of(client, url, api_key)
        path = f"/v1/sandboxes/{path_segment('id', id)}"
        return cls(transport, transport.json(Request("GET", path, call_timeout_seconds=call_timeout_seconds)))

    @classmethod
    def list(
        cls,
        *,
        state: Union[str, Sequence[str], None] = None,
        tenant: Optional[str] = None,
        template: Optional[str] = None,
        metadata: Optional[Mapping[str, str]] = None,
        page_size: Optional[int] = None,
        call_timeout_seconds: Optional[float] = None,
        client: Optional[Torpor] = None,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
    ) -> PagedList["Sandbox"]:
        """Sandboxes that meet all conditions, the newest first, fetched page by page as they are iterated.

        `state`: one, several, or `all`; default all but `destroyed`. `metadata`: all of these
        labels. `page_size`: default 50, at most 200.
        """
        transport = transport_of(client, url, api_key)
        filters: Dict[str, QueryValue] = {
            "state": state if state is None or isinstance(state, str) else ",".join(state),
            "tenant": tenant,
            "template": template,
            "limit": page_size,
        }
        for name, value in (metadata or {}).items():
            filters[f"metadata.{name}"] = value

        def fetch(cursor: Optional[str]) -> Page["Sandbox"]:
            query: Dict[str, QueryValue] = {**filters, "cursor": cursor}
            return fetch_page(
                transport, "/v1/sandboxes", query, lambda wire: cls(transport, wire), call_timeout_seconds
            )

        return PagedList(fetch)

    def fork(
        self,
        count: int = 1,
        *,
        ttl_seconds: MaybeSeconds = UNSET,
        metadata: Optional[Mapping[str, str]] = None,
        secrets: Optional[Mapping[str, str]] = None,
        idempotency_key: Optional[str] = None,
        call_timeout_seconds: float = LONG_SECONDS,
    ) -> ForkResult:
        """Copies it, memory and processes included, `count` times (1 to 100). It runs on after a short pause.

        The children have ids of their own and inherit its lifecycle, network, environment and secrets; `metadata` and
        `secrets` given here go over the parent's. Each child fails on its own.
        """
        if count < 1:
            raise invalid(f"count must be at least 1; it is {count}", "count")
        fields = {
            "count": count,
            "metadata": None if metadata is None else dict(metadata),
            "secrets": None if secrets is None else dict(secrets),
        }
        answer = self._ask(
            "POST", "/fork", fields, {"ttl_seconds": ttl_seconds}, call_timeout_seconds, idempotency_key
        )
        children = answered_list(answer, "children")
        return ForkResult([self._child(child) for child in children])

    def explore(
        self,
        candidates: Sequence[Candidate],
        attempt: Callable[["Sandbox", Candidate], float],
        *,
        concurrency: Optional[int] = None,
        ttl_seconds: MaybeSeconds = UNSET,
        metadata: Optional[Mapping[str, str]] = None,
        secrets: Optional[Mapping[str, str]] = None,
        call_timeout_seconds: float = LONG_SECONDS,
    ) -> Exploration[Candidate]:
        """Tries each candidate in a fork of its own, in threads, and keeps the one with the highest score.

        `attempt(fork, candidate)` returns the score, a finite number; one that returns anything else, or raises, has
        failed. Of equal scores the earlier candidate wins. All forks but the winner's are destroyed. `concurrency`:
        attempts that run at once; default all. The rest is as for `fork`.

        Raises TorporError `no_attempt_scored`, from what the first raised, when none came to a score.
        """

        def fork(count: int) -> ForkResult:
            return self.fork(
                count,
                ttl_seconds=ttl_seconds,
                metadata=metadata,
                secrets=secrets,
                call_timeout_seconds=call_timeout_seconds,
            )

        return explore(fork, candidates, attempt, concurrency)

    def _child(self, wire: Mapping[str, Any]) -> Union["Sandbox", TorporError]:
        sandbox = wire.get("sandbox")
        if isinstance(sandbox, dict):
            return type(self)(self._transport, sandbox, is_new=True)
        return error_from_fields(wire)

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(
        self,
        exc_type: Optional[Type[BaseException]],
        exc: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if self._info.persistent:
            return
        try:
            self.destroy()
        except TorporError:
            # The block's own error says more; what could not be destroyed ends by its TTL.
            if exc_type is None:
                raise

    def __repr__(self) -> str:
        return f"Sandbox({self.id!r}, state={self._info.state!r})"
