"""A client of one server."""

from __future__ import annotations

import atexit
import ssl
from typing import Dict, Optional, Sequence

from ._closing import Closing
from ._connection_options import ResolvedConnection, resolve_connection
from ._transport import Transport
from .accounts import Accounts
from .usage import Usage
from .api_keys import ApiKeys
from .events import EventStream
from .errors import ConfigurationError
from .ledger import Ledger
from .snapshots import Snapshots
from .templates import Templates
from .webhooks import Webhooks


class Torpor(Closing):
    """One Torpor server. Safe to use from several threads; a forked process gets connections of its own.

    Pass it as `client` to `Sandbox.create`, `get`, `list` and `session`, which without it find the server by the
    environment. Closing it closes its idle connections.
    """

    def __init__(
        self,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
        *,
        call_timeout_seconds: Optional[float] = None,
        max_retries: Optional[int] = None,
        ssl_context: Optional[ssl.SSLContext] = None,
    ) -> None:
        """Each: the argument, else the environment, else the default.

        `url`: `TORPOR_URL`, else where the instance of `TORPOR_STATE_DIR` serves, else the local instance,
        `http://127.0.0.1:7070`. `api_key`: `TORPOR_API_KEY`, else the content of the file named by
        `TORPOR_API_KEY_FILE`, else, on a loopback URL or that instance's, of `api-key` in `TORPOR_STATE_DIR`, which is
        `/var/lib/torpor` when absent; the key's file is read at the first request. `call_timeout_seconds`: longest time for a call, retries included; 60, 0 for no
        limit. `max_retries`: repetitions of a request that failed in a way that passes (connection, 429, 502, 503,
        504); 3. `ssl_context`: default `ssl.create_default_context()`.

        Raises ConfigurationError when the URL or the key cannot be used; a missing key only at the first request.
        """
        connection = resolve_connection(
            url=url,
            api_key=api_key,
            call_timeout_seconds=call_timeout_seconds,
            max_retries=max_retries,
            ssl_context=ssl_context,
        )
        self._transport = Transport(connection)
        self.templates = Templates(self._transport)
        self.snapshots = Snapshots(self._transport)
        self.keys = ApiKeys(self._transport)
        self.accounts = Accounts(self._transport)
        self.usage = Usage(self._transport)
        self.webhooks = Webhooks(self._transport)
        self.ledger = Ledger(self._transport)

    @property
    def url(self) -> str:
        """The server's base URL."""
        return self._transport.connection.url

    def events(
        self,
        *,
        after: Optional[str] = None,
        types: Optional[Sequence[str]] = None,
        tenant: Optional[str] = None,
        follow: bool = True,
    ) -> EventStream:
        """What happens to all sandboxes the key may see. Wakes nothing and counts as no activity.

        `after`: `now` (the default), `oldest` (all that is kept: 7 days), or after the event of this id. `types`: only
        these, such as `sandbox.destroyed`. `follow=False` ends after what is there.
        """
        return EventStream(
            self._transport, "/v1/events", after=after, types=types, follow=follow, tenant=tenant
        )

    def close(self) -> None:
        """Closes idle connections. It can be used on; then it opens new ones."""
        self._transport.close()

    def __repr__(self) -> str:
        return f"Torpor({self.url!r})"


def transport_of(client: Optional[Torpor], url: Optional[str], api_key: Optional[str]) -> Transport:
    """The client's, or the process's own for this URL and key."""
    if client is None:
        return _shared.transport(resolve_connection(url=url, api_key=api_key))
    if url is not None or api_key is not None:
        raise ConfigurationError("pass either client, or url and api_key", code="configuration")
    return client._transport


class _SharedTransports:
    """Keeps the connections of calls that name no client, so that each does not open its own.

    Without a lock: each step is atomic, and a fork in the middle cannot leave a lock held.
    """

    #: Servers and keys in use at once beyond this are rare; the oldest is let go.
    _MAX_KEPT = 16

    def __init__(self) -> None:
        self._transports: Dict[ResolvedConnection, Transport] = {}

    def transport(self, connection: ResolvedConnection) -> Transport:
        found = self._transports.get(connection)
        if found is not None:
            return found
        if not self._transports:
            atexit.register(self.close)
        found = self._transports.setdefault(connection, Transport(connection))
        for oldest in list(self._transports)[: -self._MAX_KEPT]:
            let_go = self._transports.pop(oldest, None)
            if let_go is not None:
                let_go.close()
        return found

    def close(self) -> None:
        for transport in list(self._transports.values()):
            transport.close()


_shared = _SharedTransports()
