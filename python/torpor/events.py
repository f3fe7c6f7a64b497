"""What happens to sandboxes, as it happens."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import random
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence, Union

from ._closing import Closing
from ._ndjson import read_lines
from ._request import QueryValue, Request
from ._retry_delay import retry_delay_seconds
from ._transport import OpenAnswer, Transport
from ._wire_time import required_time
from .errors import TorporError

#: Silence after which the connection counts as broken, seconds: three heartbeats of the server.
_SILENCE_SECONDS = 45.0
#: How long it is tried again without a success before the failure is raised, seconds.
_GIVE_UP_AFTER_SECONDS = 300.0
#: A webhook's delivery older or newer than this is refused, seconds.
_TOLERANCE_SECONDS = 300


@dataclass(frozen=True)
class SandboxEvent:
    #: Unique; a later event has a larger number in it.
    id: str
    #: `sandbox.` and the state it entered; `sandbox.updated`: its clocks or its shape changed; `sandbox.idle_awake`: awake
    #: for long without being used, with what that costs in `changes`; `budget.warning` when most of a
    #: budget is spent, `budget.exhausted` when all is.
    type: str
    at: datetime
    #: None for a budget's, as are generation and state.
    sandbox_id: Optional[str]
    #: The sandbox's name; None where it has none, and of a sandbox that is kept no longer.
    name: Optional[str]
    #: The sandbox's; empty of one that is kept no longer, and for a budget's.
    metadata: Dict[str, str]
    #: None for that of an account's budget.
    tenant: Optional[str]
    generation: Optional[int]
    #: State after the event.
    state: Optional[str]
    #: State before it; None for the first event of a sandbox.
    previous_state: Optional[str]
    #: Why it ended or is ending; None while it lives.
    reason: Optional[str]
    #: What changed with it, as the wire names and writes it.
    changes: Dict[str, Any]


class EventStream(Closing):
    """Events in order, none missing and none twice. Iterate it in one thread.

    A connection that breaks is opened again where it broke, for up to 5 minutes. `close()`, from any thread, ends the
    iteration. Raises EventsExpiredError when the place to go on from is no longer kept.
    """

    def __init__(
        self,
        transport: Transport,
        path: str,
        *,
        after: Optional[str],
        types: Optional[Sequence[str]],
        follow: bool,
        tenant: Optional[str] = None,
        ends_with_sandbox: bool = False,
    ) -> None:
        """Made by `sandbox.events` and `client.events`."""
        self._transport = transport
        self._path = path
        self._query: Dict[str, QueryValue] = {
            "types": None if types is None else ",".join(types),
            "follow": follow,
            "tenant": tenant,
        }
        self._follow = follow
        self._ends_with_sandbox = ends_with_sandbox
        self._after = after
        self._closed = threading.Event()
        self._open: Optional[OpenAnswer] = None
        self._events = self._read()

    @property
    def last_id(self) -> Optional[str]:
        """How far it has come: passed as `after`, another stream goes on from there."""
        return self._after

    def __iter__(self) -> Iterator[SandboxEvent]:
        return self._events

    def close(self) -> None:
        """Ends the iteration. Idempotent."""
        self._closed.set()
        if self._open is not None:
            self._open.answer.close()

    def _read(self) -> Iterator[SandboxEvent]:
        failures = 0
        good_at = time.monotonic()
        while not self._closed.is_set():
            try:
                for event in self._connection():
                    failures = 0
                    good_at = time.monotonic()
                    if event is None:
                        continue
                    yield event
                    if self._ends_with_sandbox and event.state == "destroyed":
                        return
                if not self._follow:
                    return
            except TorporError as error:
                if self._closed.is_set():
                    return
                if not error.retryable or time.monotonic() - good_at > _GIVE_UP_AFTER_SECONDS:
                    raise
            finally:
                if self._open is not None:
                    self._open.answer.close()
            self._closed.wait(retry_delay_seconds(failures, None, random.random))
            failures += 1

    def _connection(self) -> Iterator[Optional[SandboxEvent]]:
        """One connection's events; None for a heartbeat."""
        request = Request(
            "GET",
            self._path,
            query={**self._query, "after": self._after},
            accept="application/x-ndjson",
            call_timeout_seconds=_SILENCE_SECONDS,
        )
        self._open = self._transport.open(request)
        for line in read_lines(self._open, f"following {self._path}"):
            event_id = line.get("id")
            if not isinstance(event_id, str):
                continue
            yield None if line.get("type") == "keepalive" else sandbox_event(line)
            # Not before it was taken: a loop that is left in its middle resumes with it.
            self._after = event_id


def sandbox_event(wire: Mapping[str, Any]) -> SandboxEvent:
    """Wire form to ours."""
    return SandboxEvent(
        id=wire["id"],
        type=wire["type"],
        at=required_time(wire.get("at")),
        sandbox_id=wire.get("sandbox_id"),
        name=wire.get("name"),
        metadata=dict(wire.get("metadata") or {}),
        tenant=wire.get("tenant"),
        generation=wire.get("generation"),
        state=wire.get("state"),
        previous_state=wire.get("previous_state"),
        reason=wire.get("reason"),
        changes=dict(wire.get("changes") or {}),
    )


def verify_webhook(body: Union[str, bytes], headers: Mapping[str, str], secret: str) -> SandboxEvent:
    """The event of a webhook's request, once its signature is proven (Standard Webhooks 1.0).

    `body` is the request's as it came; `headers` its headers, by any case; `secret` is `whsec_...`, as the webhook's
    creation showed it. Deliveries come at least once: tell repeats by `id`. Raises TorporError `webhook_invalid` when it
    is not from the server, or not from the last 5 minutes.
    """
    found = {name.lower(): value for name, value in headers.items()}
    event_id = found.get("webhook-id", "")
    timestamp = found.get("webhook-timestamp", "")
    raw = body.encode() if isinstance(body, str) else body
    is_number = timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12
    if not is_number or abs(time.time() - int(timestamp)) > _TOLERANCE_SECONDS:
        raise _invalid(f"its webhook-timestamp is not within {_TOLERANCE_SECONDS} s of now")
    try:
        key = base64.b64decode(secret[len("whsec_") :] if secret.startswith("whsec_") else secret)
    except (binascii.Error, ValueError) as cause:
        raise _invalid("the secret is not whsec_ and base64") from cause
    if not key:
        raise _invalid("the secret is empty, so that anybody could have signed it")
    signed = f"{event_id}.{timestamp}.".encode() + raw
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest())
    # Several are sent while a secret is changed; one that holds is enough.
    for signature in found.get("webhook-signature", "").split(" "):
        version, _, value = signature.partition(",")
        if version == "v1" and hmac.compare_digest(value.encode(), expected):
            return sandbox_event(json.loads(raw))
    raise _invalid("its signature is not made with this secret")


def _invalid(why: str) -> TorporError:
    return TorporError(f"the webhook's request cannot be trusted: {why}", code="webhook_invalid")
