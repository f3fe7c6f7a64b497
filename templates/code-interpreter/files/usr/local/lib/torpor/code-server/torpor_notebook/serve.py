"""Wires the code server: one default kernel, then the port."""

import asyncio
import os
import signal
import tempfile
from pathlib import Path

from tornado.httpserver import HTTPServer

import torpor_restore
from torpor_notebook.contexts import Contexts
from torpor_notebook.held_execution import HeldExecutions
from torpor_notebook.limits import REQUEST_BYTES_MAX
from torpor_notebook.routes import application
from torpor_notebook.warm_up import on_restore, warm_up

PORT = 49999


async def serve() -> None:
    runtime = Path(os.environ.get("TORPOR_RUNTIME_DIR") or tempfile.mkdtemp(prefix="torpor-code-"))
    contexts = Contexts(runtime, os.getcwd())
    asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, contexts.look)
    executions = HeldExecutions()
    torpor_restore.listen("code-server", on_restore(contexts, executions))
    await warm_up(contexts)
    server = HTTPServer(application(contexts, executions), max_body_size=REQUEST_BYTES_MAX, max_buffer_size=REQUEST_BYTES_MAX)
    # Who may come to this port is decided outside: by the host's proxy, and by the network, which lets no sandbox reach another.
    server.listen(PORT, "0.0.0.0")
    print(f"torpor: the code server listens on port {PORT}", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    os.umask(0o022)
    asyncio.run(serve())
