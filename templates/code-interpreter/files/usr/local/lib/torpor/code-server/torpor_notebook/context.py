"""A context: a kernel that is replaced when it dies, and executions that take turns on it."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any

from torpor_notebook.environment import kernel_environment
from torpor_notebook.kernel import Kernel, KernelLost
from torpor_notebook.limits import EXECUTIONS_WAITING_MAX, INTERRUPT_AGAIN_SECONDS, LINES_WAITING_MAX
from torpor_notebook.lines import Line, error_line, unexpected_end


class Busy(Exception):
    """Too many executions wait already."""


class Context:
    """Made by `start`. Its id outlives its kernels: one that dies is followed by a new one, without the variables."""

    def __init__(self, id: str, language: str, cwd: str, runtime: Path) -> None:
        self.id, self.language, self.cwd = id, language, cwd
        self._runtime = runtime
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._kernel: Kernel | None = None
        self._starting = asyncio.Lock()
        self._gone = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Starts the kernel unless one lives. Raises RuntimeError."""
        async with self._starting:
            if self._gone:
                raise RuntimeError(f"Context {self.id} was deleted")
            if self._kernel is not None and self._kernel.look():
                return
            if self._kernel is not None:
                await self._kernel.end()
                self._kernel = None
            self._kernel = await Kernel.start(self.language, self.cwd, kernel_environment(), self._runtime)

    async def restart(self) -> None:
        """A new kernel; what runs ends with an error line."""
        async with self._starting:
            if self._kernel is not None:
                await self._kernel.end()
                self._kernel = None
        await self.start()

    async def delete(self) -> None:
        self._gone = True
        async with self._starting:
            if self._kernel is not None:
                await self._kernel.end()
                self._kernel = None

    def look(self) -> None:
        """Called when a child process has ended: a dead kernel is replaced at once, so that the next execution need not wait."""
        if self._kernel is not None and not self._kernel.look() and not self._gone and not self._starting.locked():
            self._spawn(self._replace())

    async def _replace(self) -> None:
        try:
            await self.start()
        except RuntimeError as error:
            print(f"torpor: no new kernel for context {self.id}: {error}", flush=True)

    def execute(self, code: str, env_vars: dict[str, str], *, counted: bool = True) -> "Execution":
        """Takes a place in the queue. Raises Busy. For `counted` see Kernel.execute."""
        if self._waiting >= EXECUTIONS_WAITING_MAX:
            raise Busy(f"{self._waiting} executions wait for context {self.id} already")
        return Execution(self.run(code, env_vars, abandoned := asyncio.Event(), counted), abandoned, self._tasks)

    async def run(self, code: str, env_vars: dict[str, str], abandoned: asyncio.Event, counted: bool) -> AsyncGenerator[Line, None]:
        """Lines of one execution, when its turn has come. Once `abandoned`, it is interrupted and given up when it has ended."""
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            if abandoned.is_set():
                return
            try:
                await self.start()
            except RuntimeError as error:
                yield error_line("KernelStartError", str(error))
                return
            kernel = self._kernel
            if kernel is None:
                yield unexpected_end()
                return
            interrupting = asyncio.create_task(_interrupt_once(abandoned, kernel))
            try:
                async with aclosing(kernel.execute(code, env_vars, counted=counted)) as lines:
                    async for line in lines:
                        yield line
            except KernelLost:
                yield unexpected_end()
            finally:
                interrupting.cancel()
            if kernel.leaving:
                await kernel.end()
                self.look()
        finally:
            self._turn.release()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _interrupt_once(abandoned: asyncio.Event, kernel: Kernel) -> None:
    """Interrupts, and again while the execution goes on: code may catch the first."""
    await abandoned.wait()
    while True:
        await kernel.interrupt()
        await asyncio.sleep(INTERRUPT_AGAIN_SECONDS)


class Execution:
    """One execution on its own task: it is carried to its end also when its client leaves, so that the next finds the kernel free."""

    def __init__(self, lines: AsyncGenerator[Line, None], abandoned: asyncio.Event, tasks: "set[asyncio.Task[None]]") -> None:
        self._abandoned = abandoned
        self._lines: asyncio.Queue[Line | None] = asyncio.Queue(LINES_WAITING_MAX)
        task = asyncio.create_task(self._carry(lines))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _carry(self, source: AsyncGenerator[Line, None]) -> None:
        try:
            async with aclosing(source) as lines:
                async for line in lines:
                    if not self._abandoned.is_set():
                        await self._put(line)
        except Exception as error:
            await self._put(error_line(type(error).__name__, f"The code server failed: {error}"))
            raise
        finally:
            await self._put(None)

    async def _put(self, line: Line | None) -> None:
        """Waits for a place, but not for a client that has left."""
        placed = asyncio.create_task(self._lines.put(line))
        left = asyncio.create_task(self._abandoned.wait())
        await asyncio.wait({placed, left}, return_when=asyncio.FIRST_COMPLETED)
        placed.cancel()
        left.cancel()

    async def next(self) -> Line | None:
        """The next line; None at the end."""
        return await self._lines.get()

    def abandon(self) -> None:
        """The client has left."""
        self._abandoned.set()
