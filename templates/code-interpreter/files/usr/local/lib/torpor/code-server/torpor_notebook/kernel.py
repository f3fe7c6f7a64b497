"""One kernel process and its channels."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager

import torpor_restore
from torpor_notebook.limits import KERNEL_START_SECONDS, LINES_WAITING_MAX, RESULT_BYTES_MAX
from torpor_notebook.lines import Line, left_out, line_of

ENV_METADATA_KEY = "torpor_env_vars"
KERNELS_FOLDER = Path(__file__).resolve().parent.parent / "kernels"
START_PROBE_SECONDS = 1.0
PROBE_POLL_MS = 20

Message = dict[str, Any]


class KernelLost(Exception):
    """The kernel's process has ended."""


class Kernel:
    """A running kernel. `start` makes one, `end` is idempotent; what comes in between raises KernelLost once it is dead."""

    def __init__(self, manager: AsyncKernelManager, folder: Path) -> None:
        self._manager = manager
        self._folder = folder
        self._shell: zmq.asyncio.Socket = manager.connect_shell()
        self._output: zmq.asyncio.Socket = manager.connect_iopub()
        self._dead = asyncio.Event()
        self._pid: int = manager.provisioner.pid
        self._ending: asyncio.Task[None] | None = None
        self._parent = ""
        # Whether the code has asked for the kernel's end, which is then not to be used again.
        self.leaving = False
        self._lines: asyncio.Queue[Line | None] | None = None
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, language: str, cwd: str, env: dict[str, str], runtime: Path) -> "Kernel":
        """Starts a kernel of `language` in `cwd`. Raises RuntimeError when it does not come up in time."""
        folder = Path(tempfile.mkdtemp(prefix=f"{language}-", dir=runtime))
        specs = KernelSpecManager(kernel_dirs=[str(KERNELS_FOLDER)], ensure_native_kernel=False)
        # Unix sockets: fewer, and of no concern to the network. HWM: what piles up here is bounded; the kernel waits.
        context = zmq.asyncio.Context.instance()
        context.setsockopt(zmq.RCVHWM, LINES_WAITING_MAX)
        manager = AsyncKernelManager(
            kernel_name=f"torpor-{language}",  # plain `python` would be Jupyter's own
            kernel_spec_manager=specs,
            context=context,
            transport="ipc",
            ip=str(folder / "kernel"),
            connection_file=str(folder / "connection.json"),
        )
        await manager.start_kernel(cwd=cwd, env={**env, "PWD": cwd})
        kernel = cls(manager, folder)
        try:
            await asyncio.wait_for(kernel._until_ready(), KERNEL_START_SECONDS)
        except asyncio.TimeoutError:
            await kernel.end()
            raise RuntimeError(f"the {language} kernel did not start within {KERNEL_START_SECONDS:.0f} seconds") from None
        except BaseException:
            await kernel.end()
            raise
        kernel._reading = asyncio.create_task(kernel._read_output())
        return kernel

    def look(self) -> bool:
        """Whether it lives; called when a child of this process has ended."""
        process = self._manager.provisioner.process
        if process is None or process.poll() is not None:
            self._dead.set()
        return not self._dead.is_set()

    async def wait_dead(self) -> None:
        await self._dead.wait()

    async def execute(self, code: str, env_vars: dict[str, str], *, counted: bool = True) -> AsyncGenerator[Line, None]:
        """Runs code and gives its lines as they come. Raises KernelLost. To be closed only when it has ended.

        Unless `counted`, neither the execution's number nor its history moves on.
        """
        lines: asyncio.Queue[Line | None] = asyncio.Queue(LINES_WAITING_MAX)
        content = {"code": code, "silent": False, "store_history": counted, "user_expressions": {}, "allow_stdin": False, "stop_on_error": True}
        session = self._manager.session
        sent = session.msg("execute_request", content, metadata={ENV_METADATA_KEY: env_vars} if env_vars else {})
        self._parent, self._lines = sent["header"]["msg_id"], lines
        session.send(self._shell, sent)
        reply = asyncio.create_task(self._read_reply(self._parent))
        dead = asyncio.create_task(self._dead.wait())
        try:
            while True:
                line = asyncio.create_task(lines.get())
                await asyncio.wait({line, dead}, return_when=asyncio.FIRST_COMPLETED)
                if line.done():
                    found = line.result()
                    if found is None:
                        break
                    yield found
                    continue
                line.cancel()
                raise KernelLost
            await asyncio.wait({reply, dead}, return_when=asyncio.FIRST_COMPLETED)
            if not reply.done():
                raise KernelLost
        finally:
            self._lines = None
            for task in (reply, dead):
                task.cancel()

    async def interrupt(self) -> None:
        """Raises KeyboardInterrupt in what it runs, and in the processes that started; idle, it takes no notice."""
        if not self._dead.is_set():
            await self._manager.interrupt_kernel()

    async def end(self) -> None:
        """Kills the process and removes what it had. Later callers wait for the first one's work."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        self._dead.set()
        if self._reading is not None:
            self._reading.cancel()
        for socket in (self._shell, self._output):
            socket.close(linger=0)
        try:
            await self._manager.shutdown_kernel(now=True)
        finally:
            torpor_restore.forget(self._pid)
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _until_ready(self) -> None:
        """Until it answers and its output is heard: what a kernel publishes before the subscription stands is lost."""
        session = self._manager.session
        answered = heard = False
        while not (answered and heard):
            if not self.look():
                raise RuntimeError("the kernel ended while it started")
            session.send(self._shell, "kernel_info_request")
            deadline = asyncio.get_running_loop().time() + START_PROBE_SECONDS
            while not (answered and heard) and asyncio.get_running_loop().time() < deadline:
                if await self._shell.poll(PROBE_POLL_MS):
                    await self._shell.recv_multipart()
                    answered = True
                if await self._output.poll(PROBE_POLL_MS):
                    await self._output.recv_multipart()
                    heard = True

    async def _read_reply(self, parent: str) -> None:
        session = self._manager.session
        while True:
            _, frames = session.feed_identities(await self._shell.recv_multipart())
            message = session.deserialize(frames)
            if message["parent_header"].get("msg_id") == parent:
                # `exit()`: the process ends a moment later by itself.
                self.leaving = any(part.get("source") == "ask_exit" for part in message["content"].get("payload", ()))
                return

    async def _read_output(self) -> None:
        """Reads the output channel for as long as the kernel lives; what belongs to no execution is dropped."""
        session = self._manager.session
        while True:
            raw = await self._output.recv_multipart()
            try:
                _, frames = session.feed_identities(raw)
                size = sum(len(frame) for frame in frames)
                message = session.deserialize(frames) if size <= RESULT_BYTES_MAX else None
                line = line_of(message) if message is not None else left_out(size, RESULT_BYTES_MAX)
            except Exception as error:  # user code can reach this channel and send anything
                print(f"torpor: a message of kernel {os.path.basename(self._folder)} was not understood: {error}", flush=True)
                continue
            lines = self._lines
            if lines is None or (message is not None and message["parent_header"].get("msg_id") != self._parent):
                continue
            if message is not None and message["header"]["msg_type"] == "status":
                if message["content"].get("execution_state") == "idle":
                    await lines.put(None)
            elif line is not None:
                await lines.put(line)
