"""Told of each restore of this machine, so that no two copies go on with the same random numbers.

The guest agent connects to every socket in FOLDER after a restore, sends one line of JSON and waits for "ok".
"""

import atexit
import base64
import glob
import json
import os
import random
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

FOLDER = "/run/torpor/reseed.d"
# Entropy, a few names and the sandbox's whole environment.
MESSAGE_BYTES_MAX = 2 * 1024 * 1024
SEND_TIMEOUT_SECONDS = 5.0

# Called with the sandbox's environment variables and its generation, which is 0 for a copy that is nobody's yet.
Then = Callable[[dict[str, str], int], None]

_sandbox_names: set[str] = set()


def listen(name: str, then: Then | None = None, own_names: frozenset[str] = frozenset()) -> None:
    """Registers this process under `name` and reseeds it at each restore, whatever its other threads do.

    `then` is called afterwards; the restore waits for it. Variables in `own_names` keep what this process has set. Outside a
    sandbox nothing happens. A restore that falls before the registration is covered as well: the generators are seeded
    anew once it stands.
    """
    path = f"{FOLDER}/{name}.{os.getpid()}.sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Renamed only once it listens: a socket nobody listens on counts as left by a process that has ended.
    unfinished = f"{path}.new"
    try:
        listener.bind(unfinished)
        listener.listen(8)
        os.rename(unfinished, path)
    except OSError as error:
        listener.close()
        if os.path.isdir(FOLDER):
            print(f"torpor: cannot listen on {path}: {error}; copies of this process may repeat its random numbers", file=sys.stderr)
        return
    owner = os.getpid()
    atexit.register(lambda: os.getpid() == owner and _remove(path))
    # A forked child must not keep the socket open: it would be waited for in vain once the parent has ended.
    os.register_at_fork(after_in_child=listener.close)
    reseed(os.urandom(64))
    threading.Thread(target=_serve, args=(listener, then, own_names), name="torpor-restore", daemon=True).start()


def forget(pid: int) -> None:
    """Takes away the registration of a process that was killed. The next restore would as well."""
    for path in glob.glob(f"{FOLDER}/*.{pid}.sock"):
        _remove(path)


def reseed(entropy: bytes) -> None:
    """Seeds every process-wide generator that is loaded. Generators that user code made itself are left alone."""
    random.seed(entropy)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed([int.from_bytes(entropy[i : i + 4], "little") for i in range(0, len(entropy), 4)])
    ssl = sys.modules.get("ssl")
    if ssl is not None:
        ssl.RAND_add(entropy, float(len(entropy)))
    # uuid4 asks the kernel each time; uuid1 has a node, a clock sequence and a generator in libuuid that copies share.
    uuid: Any = sys.modules.get("uuid")
    if uuid is not None:
        uuid._node = random.getrandbits(48) | (1 << 40)
        uuid._generate_time_safe = None
        uuid._last_timestamp = None
    tempfile: Any = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile._name_sequence = None


def adopt_environment(env: dict[str, str]) -> None:
    """Makes the sandbox's variables this process's, and takes away those of the sandbox this is a copy of."""
    for name in _sandbox_names - env.keys():
        os.environ.pop(name, None)
    os.environ.update(env)
    _sandbox_names.clear()
    _sandbox_names.update(env)


def _serve(listener: socket.socket, then: Then | None, own_names: frozenset[str]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        try:
            with connection:
                connection.settimeout(SEND_TIMEOUT_SECONDS)
                message = json.loads(_read_line(connection))
                env = {name: str(value) for name, value in (message.get("env") or {}).items() if name not in own_names}
                reseed(base64.b64decode(message["entropy_base64"], validate=True))
                adopt_environment(env)
                if then is not None:
                    then(env, int(message["generation"]))
                connection.sendall(b"ok\n")
        except Exception as error:  # one bad caller must not end the service for the next
            print(f"torpor: a restore message was not understood: {error}", file=sys.__stderr__)


def _read_line(connection: socket.socket) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = connection.recv(65536)
        if not piece:
            raise ValueError("the connection ended within the line")
        line += piece
        if len(line) > MESSAGE_BYTES_MAX:
            raise ValueError(f"the line is longer than {MESSAGE_BYTES_MAX} bytes")
    return bytes(line)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
