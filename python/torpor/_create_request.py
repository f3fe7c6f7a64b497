"""Creating a sandbox, and undoing it when its outcome is unknown."""

from __future__ import annotations

import threading
from typing import Any, Dict, Mapping, Optional, Union

from ._request import Request, Unset, json_fields, path_segment
from ._transport import Transport, new_idempotency_key
from .errors import TimeoutError, TorporError

#: Longest time for a create: a miss of the pool restores on the spot, seconds.
CREATE_SECONDS = 120.0
#: Longest time for undoing a create, seconds.
_UNDO_SECONDS = 30.0

MaybeSeconds = Union[int, None, Unset]


def create_body(
    given: Mapping[str, Any],
    *,
    ttl_seconds: MaybeSeconds,
    idle_timeout_seconds: MaybeSeconds,
    retention_seconds: MaybeSeconds,
) -> bytes:
    """The body of a create. The three clocks are apart since None is a value of theirs."""
    fields = dict(given)
    for name in ("metadata", "env", "secrets"):
        if fields.get(name) is not None:
            fields[name] = dict(fields[name])
    clocks = {
        "ttl_seconds": ttl_seconds,
        "idle_timeout_seconds": idle_timeout_seconds,
        "retention_seconds": retention_seconds,
    }
    return json_fields(fields, clocks)


def create_sandbox(
    transport: Transport,
    body: bytes,
    idempotency_key: Optional[str],
    call_timeout_seconds: Optional[float],
) -> Dict[str, Any]:
    """Creates a sandbox.

    When the call runs out of time or is interrupted (^C), whether it was made is unknown; then it is undone in the
    background, unless the caller gave an idempotency key, which says that they mean to ask again.
    """
    key = idempotency_key if idempotency_key is not None else new_idempotency_key()
    request = Request(
        "POST",
        "/v1/sandboxes",
        json_body=body,
        idempotency_key=key,
        call_timeout_seconds=CREATE_SECONDS if call_timeout_seconds is None else call_timeout_seconds,
    )
    try:
        return transport.json(request)
    except BaseException as error:
        is_unknown = isinstance(error, TimeoutError) or not isinstance(error, Exception)
        if is_unknown and idempotency_key is None:
            _undo_in_background(transport, body, key)
        raise


def _undo_in_background(transport: Transport, body: bytes, idempotency_key: str) -> None:
    undoing = threading.Thread(
        target=_undo, args=(transport, body, idempotency_key), name="torpor-undo-create", daemon=False
    )
    try:
        undoing.start()
    except RuntimeError:
        # The interpreter is ending: the sandbox's own clocks end it.
        pass


def _undo(transport: Transport, body: bytes, idempotency_key: str) -> None:
    """Asking again with the same key gives the sandbox's id; a failure leaves it to its own clocks."""
    try:
        answer = transport.json(
            Request(
                "POST",
                "/v1/sandboxes",
                json_body=body,
                idempotency_key=idempotency_key,
                call_timeout_seconds=_UNDO_SECONDS,
            )
        )
        path = f"/v1/sandboxes/{path_segment('id', str(answer.get('id', '')))}"
        transport.text(Request("DELETE", path, call_timeout_seconds=_UNDO_SECONDS))
    except TorporError:
        pass
