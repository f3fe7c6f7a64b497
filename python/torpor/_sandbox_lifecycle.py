"""How a sandbox sleeps, wakes, is copied and ends."""

from __future__ import annotations

from datetime import datetime
from typing import List, Literal, Optional, Sequence, cast

from ._answered_list import answered_list
from ._create_request import MaybeSeconds
from ._request import UNSET, Request
from ._sandbox_resource import SandboxResource
from ._wire_time import iso_time
from .events import EventStream
from .errors import NotFoundError, SandboxEndedError
from .network_policy import Network, network_wire
from .sandbox_info import SandboxInfo
from .sandbox_sample import SandboxSample, sandbox_sample
from .snapshots import Snapshot, snapshot
from .state_inventory import Lifecycle, StateInventory

OnIdle = Literal["hibernate", "pause", "destroy", "none"]
OnExpire = Literal["destroy", "hibernate"]

#: Time limit of what moves a machine's memory to or from storage, seconds.
LONG_SECONDS = 300.0


class SandboxLifecycle(SandboxResource):
    """The part of Sandbox about its life."""

    def refresh(self, *, call_timeout_seconds: Optional[float] = None) -> SandboxInfo:
        """Asks the server. Never wakes the sandbox or extends its life."""
        return self._update("GET", "", None, {}, call_timeout_seconds)

    def pause(self, *, call_timeout_seconds: Optional[float] = None) -> SandboxInfo:
        """Freezes it in memory, at once. Joins a pause under way; one that is paused is fine."""
        return self._update("POST", "/pause", {}, {}, call_timeout_seconds)

    def resume(self, *, call_timeout_seconds: Optional[float] = None) -> SandboxInfo:
        """Lets a paused sandbox go on."""
        return self._update("POST", "/resume", {}, {}, call_timeout_seconds)

    def hibernate(
        self, *, memory: Optional[bool] = None, call_timeout_seconds: float = LONG_SECONDS
    ) -> SandboxInfo:
        """Puts it to storage, memory and processes included: no process and no memory is left of it.

        `memory=False`: its files alone, and its processes end; `wake`, and nothing else, boots it from them. Default:
        its `hibernate_memory`, True.

        External TCP connections of it end; `state()` names them before. A failed hibernation leaves it running.
        """
        return self._update("POST", "/hibernate", {"memory": memory}, {}, call_timeout_seconds)

    def wake(self, *, call_timeout_seconds: float = LONG_SECONDS) -> SandboxInfo:
        """Brings it back as it was. Work asked of a hibernated sandbox does so by itself, unless `auto_wake` is off.

        One that sleeps without memory boots from its files; no work wakes that.
        """
        return self._update("POST", "/wake", {}, {}, call_timeout_seconds)

    def snapshot(
        self,
        name: Optional[str] = None,
        *,
        idempotency_key: Optional[str] = None,
        call_timeout_seconds: float = LONG_SECONDS,
    ) -> Snapshot:
        """Keeps its memory and disk of this instant, for `Sandbox.create(from_snapshot=snapshot.id)`. It runs on."""
        wire = self._ask("POST", "/snapshots", {"name": name}, {}, call_timeout_seconds, idempotency_key)
        return snapshot(wire)

    def promote(
        self,
        reason: str,
        *,
        tenant: Optional[str] = None,
        persistent: bool = True,
        call_timeout_seconds: Optional[float] = None,
    ) -> SandboxInfo:
        """Makes an ephemeral sandbox persistent, or back with `persistent=False`. `reason` goes to the audit record."""
        fields = {"reason": reason, "tenant": tenant, "persistent": persistent}
        return self._update("POST", "/promote", fields, {}, call_timeout_seconds)

    def set_ttl(self, seconds: Optional[int], *, call_timeout_seconds: Optional[float] = None) -> SandboxInfo:
        """Sets the deadline to `seconds` from now, sooner or later than it was; None takes a persistent one's away.

        It is in force when this returns.
        """
        return self.set_lifecycle(ttl_seconds=seconds, call_timeout_seconds=call_timeout_seconds)

    def set_lifecycle(
        self,
        *,
        ttl_seconds: MaybeSeconds = UNSET,
        idle_timeout_seconds: MaybeSeconds = UNSET,
        retention_seconds: MaybeSeconds = UNSET,
        on_idle: Optional[OnIdle] = None,
        on_expire: Optional[OnExpire] = None,
        auto_wake: Optional[bool] = None,
        hibernate_memory: Optional[bool] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> SandboxInfo:
        """Changes its clocks and what happens at their ends. What is not given stays as it is; None is no limit."""
        given = {
            "on_idle": on_idle,
            "on_expire": on_expire,
            "auto_wake": auto_wake,
            "hibernate_memory": hibernate_memory,
        }
        clocks = {
            "ttl_seconds": ttl_seconds,
            "idle_timeout_seconds": idle_timeout_seconds,
            "retention_seconds": retention_seconds,
        }
        return self._update("PATCH", "/lifecycle", given, clocks, call_timeout_seconds)

    def set_network(
        self, network: Network, *, call_timeout_seconds: Optional[float] = None
    ) -> SandboxInfo:
        """Changes what it may reach: the whole policy anew, in force when this returns.

        `internet`: public addresses only. `none`: nothing. Rules: `{"allow": ["203.0.113.0/24", "*.example.com"]}`
        for these alone, `{"deny": [...]}` for all but these; `deny` goes before `allow`. Addresses count on all ports,
        domains on TCP 80 and 443. Connections that it forbids are cut. A hibernated one is not woken and wakes under it.
        """
        fields = {"network": network_wire(network)}
        return self._update("PATCH", "/network", fields, {}, call_timeout_seconds)

    def lifecycle(self, *, call_timeout_seconds: Optional[float] = None) -> Lifecycle:
        """Its clocks, and why it is not idle. Never extends anything."""
        return cast(Lifecycle, self._ask("GET", "/lifecycle", None, {}, call_timeout_seconds))

    def events(
        self, *, after: Optional[str] = None, types: Optional[Sequence[str]] = None, follow: bool = True
    ) -> EventStream:
        """What happened and happens to it, from its create to its end, with which it is over. Counts as no activity.

        `after`: `oldest` (the default), `now`, or after the event of this id. `types`: only these, such as
        `sandbox.hibernated`. `follow=False` ends after what is there.
        """
        return EventStream(
            self._transport,
            f"{self._path}/events",
            after=after,
            types=types,
            follow=follow,
            ends_with_sandbox=True,
        )

    def state(self, *, call_timeout_seconds: Optional[float] = None) -> StateInventory:
        """What it holds, by the six kinds of state, and what of it would survive which operation."""
        return cast(StateInventory, self._ask("GET", "/state", None, {}, call_timeout_seconds))

    def metrics(
        self,
        *,
        since: Optional[datetime] = None,
        until: Optional[datetime] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> List[SandboxSample]:
        """What it uses over time, oldest first: a sample every 5 s in which it ran, the last hour's at most, and one of now.

        A time without a zone is UTC. Wakes nothing. A restart of its host begins anew.
        """
        request = Request(
            "GET",
            f"{self._path}/metrics",
            query={"from": iso_time(since), "to": iso_time(until)},
            call_timeout_seconds=call_timeout_seconds,
        )
        return [sandbox_sample(wire) for wire in answered_list(self._transport.json(request), "samples")]

    def logs(self, *, call_timeout_seconds: Optional[float] = None) -> str:
        """The console of the machine, its last part."""
        request = Request(
            "GET", f"{self._path}/logs", accept="text/plain", call_timeout_seconds=call_timeout_seconds
        )
        return self._transport.text(request)

    def destroy(self, *, call_timeout_seconds: Optional[float] = None) -> bool:
        """Ends the sandbox and all it holds. Idempotent.

        Returns True when it was destroyed at its owner's request, False when it had already ended: by its TTL, by a
        crash, by an earlier `destroy` of this object.
        """
        if self._info.state == "destroyed":
            return False
        try:
            info = self._update("DELETE", "", None, {}, call_timeout_seconds)
        except SandboxEndedError:
            return False
        except NotFoundError as error:
            # Purged, or never ours.
            if error.code == "sandbox_not_found":
                return False
            raise
        return info.reason == "user"
