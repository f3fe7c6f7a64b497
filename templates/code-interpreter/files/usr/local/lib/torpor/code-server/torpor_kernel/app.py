"""The kernel application: ipykernel's, with output that waits for its reader instead of being dropped or piling up."""

import logging
import os
from typing import Any

import zmq
from ipykernel.iostream import IOPubThread
from ipykernel.kernelapp import IPKernelApp
from traitlets.config import Config

# Messages that may wait for the code server, here and at its side; a piece of output is at most 64 KiB of them.
OUTPUT_MESSAGES_MAX = 32


class KernelApp(IPKernelApp):
    """Differs from its base in `init_iopub` and in defaults only."""

    def init_iopub(self, context: Any) -> None:
        socket = context.socket(zmq.PUB)
        socket.linger = 1000
        socket.sndhwm = OUTPUT_MESSAGES_MAX
        # A publisher drops what a slow subscriber cannot take. This one waits: no output is lost.
        socket.setsockopt(zmq.XPUB_NODROP, 1)
        self.iopub_port = self._bind_socket(socket, self.iopub_port)
        self.configure_tornado_logger()
        # No pipe for forked children: it would be a TCP port, and their output comes by way of file descriptors.
        self.iopub_thread = IOPubThread(socket, pipe=False)
        self.iopub_thread.start()
        self.iopub_socket = self.iopub_thread.background_socket

    def load_config_file(self, *args: Any, **kwargs: Any) -> None:
        super().load_config_file(*args, **kwargs)
        defaults = Config()
        # Kernels share a home; a history file would be written by all of them, and nothing here reads it.
        defaults.HistoryManager.enabled = False
        # It would warn of the missing debugger at each start.
        defaults.Application.log_level = logging.ERROR
        defaults.IPKernelApp.outstream_class = "torpor_kernel.output_stream.OutputStream"
        self.update_config(defaults)

    def init_gui_pylab(self) -> None:
        # The template's own choice is for scripts, which have nobody to show figures to.
        os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
        super().init_gui_pylab()
