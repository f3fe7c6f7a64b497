"""Which server, which key: argument > environment > default."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import ssl
from dataclasses import dataclass
from typing import Mapping, Optional, Union
from urllib.parse import urlsplit

from .errors import ConfigurationError

#: Where a local instance serves by default (`torpor up`).
_DEFAULT_URL = "http://127.0.0.1:7070"
#: Where an instance keeps its things when TORPOR_STATE_DIR does not say otherwise.
_DEFAULT_STATE_DIR = "/var/lib/torpor"
#: Default time limit of a call, seconds.
_DEFAULT_CALL_TIMEOUT_SECONDS = 60.0
#: Default number of repetitions.
_DEFAULT_MAX_RETRIES = 3


@dataclass(frozen=True)
class GivenKey:
    """The API key itself. Not shown, so that no log holds it."""

    api_key: str

    def __repr__(self) -> str:
        return "GivenKey(...)"


@dataclass(frozen=True)
class KeyFile:
    path: str


@dataclass(frozen=True)
class ResolvedConnection:
    """How to reach a server."""

    #: Without a slash at its end.
    url: str
    is_tls: bool
    host: str
    port: int
    #: Path below which the API lies, e.g. `/torpor` behind a proxy; empty as a rule.
    base_path: str
    is_loopback: bool
    api_key_source: Union[GivenKey, KeyFile, None]
    call_timeout_seconds: float
    max_retries: int
    ssl_context: Optional[ssl.SSLContext]


def resolve_connection(
    *,
    url: Optional[str] = None,
    api_key: Optional[str] = None,
    call_timeout_seconds: Optional[float] = None,
    max_retries: Optional[int] = None,
    ssl_context: Optional[ssl.SSLContext] = None,
    environment: Mapping[str, str] = os.environ,
) -> ResolvedConnection:
    """Raises ConfigurationError when the URL or a number cannot be used, or TORPOR_STATE_DIR is to say the URL and does
    not. An empty variable counts as absent."""
    state_dir = _variable(environment, "TORPOR_STATE_DIR")
    given_url = url if url is not None else _variable(environment, "TORPOR_URL")
    recorded_url = _instance_url(state_dir) if given_url is None and state_dir is not None else None
    used_url = given_url if given_url is not None else recorded_url or _DEFAULT_URL
    try:
        parts = urlsplit(used_url)
        host, port = parts.hostname, parts.port
    except ValueError as cause:
        raise _configuration_error(
            f"{used_url!r} is no URL ({cause}): pass url or set TORPOR_URL, e.g. {_DEFAULT_URL}"
        ) from cause
    if parts.scheme not in ("http", "https") or not host:
        raise _configuration_error(f"the URL {used_url!r} is no http: or https: URL; e.g. {_DEFAULT_URL}")
    if re.search(r"[\x00-\x20\x7f-\uffff]", used_url):
        raise _configuration_error(
            f"the URL {used_url!r} has spaces or characters that are not ASCII; write it in its encoded form"
        )
    if parts.username is not None or parts.password is not None:
        raise _configuration_error(
            "the URL holds a user name or password: pass the API key as api_key or TORPOR_API_KEY"
        )
    is_tls = parts.scheme == "https"
    used_port = port if port is not None else (443 if is_tls else 80)
    base_path = parts.path.rstrip("/")
    is_loopback = host in ("localhost", "::1") or re.fullmatch(r"127\.\d+\.\d+\.\d+", host) is not None
    timeout = _DEFAULT_CALL_TIMEOUT_SECONDS if call_timeout_seconds is None else call_timeout_seconds
    if not (timeout >= 0) or math.isinf(timeout):
        raise _configuration_error(
            f"call_timeout_seconds must be a number of seconds, 0 for no limit; it is {timeout!r}"
        )
    retries = _DEFAULT_MAX_RETRIES if max_retries is None else max_retries
    if retries < 0:
        raise _configuration_error(f"max_retries must be 0 or more; it is {retries!r}")
    return ResolvedConnection(
        url=f"{parts.scheme}://{parts.netloc}{base_path}",
        is_tls=is_tls,
        host=host,
        port=used_port,
        base_path=base_path,
        is_loopback=is_loopback,
        api_key_source=_api_key_source(api_key, is_loopback or recorded_url is not None, environment),
        call_timeout_seconds=timeout,
        max_retries=retries,
        ssl_context=ssl_context,
    )


def _api_key_source(
    api_key: Optional[str], is_local: bool, environment: Mapping[str, str]
) -> Union[GivenKey, KeyFile, None]:
    key = api_key if api_key is not None else _variable(environment, "TORPOR_API_KEY")
    if key is not None:
        return GivenKey(_check_api_key(key, "the api_key argument or TORPOR_API_KEY"))
    path = _variable(environment, "TORPOR_API_KEY_FILE")
    # The local instance's key is for the local instance: it is not shown to a server elsewhere.
    if path is None and is_local:
        path = os.path.join(_variable(environment, "TORPOR_STATE_DIR") or _DEFAULT_STATE_DIR, "api-key")
    return None if path is None else KeyFile(path)


def _instance_url(state_dir: str) -> str:
    """Where the instance of a state directory serves, by the record its server wrote when it began to.

    Nothing is guessed: the directory's key is to reach no other program.
    """
    record = os.path.join(state_dir, "run", "server.json")
    try:
        with open(record, encoding="utf-8") as file:
            value = json.loads(file.read(65_536))
    except OSError as cause:
        raise _unknown_instance(state_dir, f"{record} cannot be read ({cause.strerror})") from cause
    except ValueError as cause:
        raise _unknown_instance(state_dir, f"{record} is not JSON") from cause
    url = value.get("url") if isinstance(value, dict) else None
    if not isinstance(url, str):
        raise _unknown_instance(state_dir, f"{record} names no URL")
    return url


def _unknown_instance(state_dir: str, why: str) -> ConfigurationError:
    return _configuration_error(
        f"TORPOR_STATE_DIR is {state_dir}, but where its instance serves is not known: {why}. Start it with "
        "`torpor up`, or set TORPOR_URL and TORPOR_API_KEY_FILE"
    )


def read_api_key(connection: ResolvedConnection) -> str:
    """The key, read from its file when it is there. Raises ConfigurationError that names the ways to give one."""
    source = connection.api_key_source
    if isinstance(source, GivenKey):
        return source.api_key
    if source is None:
        raise _no_api_key(f"none was given for {connection.url}")
    try:
        with open(source.path, encoding="ascii", errors="surrogateescape") as file:
            text = file.read(65_536)
    except (OSError, ValueError) as cause:
        raise _no_api_key(f"{source.path} cannot be read ({_reason_of(cause)})") from cause
    return _check_api_key(text.strip(), source.path)


def _variable(environment: Mapping[str, str], name: str) -> Optional[str]:
    return environment.get(name, "").strip() or None


def _check_api_key(api_key: str, origin: str) -> str:
    """A key as an HTTP header can carry it. The error does not quote the key."""
    if re.fullmatch(r"[\x21-\x7e]+", api_key):
        return api_key
    problem = "is empty" if api_key == "" else "contains spaces, line breaks or characters that are not ASCII"
    raise _configuration_error(f"the API key from {origin} {problem}: pass the key as it was given out")


def _no_api_key(why: str) -> ConfigurationError:
    return _configuration_error(
        f"no API key: {why}. Pass api_key, set TORPOR_API_KEY, or set TORPOR_API_KEY_FILE to a readable file "
        "that holds it"
    )


def _reason_of(cause: Exception) -> str:
    code = cause.errno if isinstance(cause, OSError) else None
    if code == errno.ENOENT:
        return "no such file: is a local instance set up? `torpor up` makes it"
    if code == errno.EACCES:
        return "permission denied: it belongs to the user who ran `torpor up`"
    return str(cause)


def _configuration_error(message: str) -> ConfigurationError:
    return ConfigurationError(message, code="configuration")
