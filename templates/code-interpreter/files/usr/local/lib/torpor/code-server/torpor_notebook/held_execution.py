"""Executions whose stream is gone on with where it broke: a snapshot cuts every connection, and is nobody's leaving."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from torpor_notebook.context import Execution
from torpor_notebook.limits import KEEPALIVE_SECONDS, PART_BYTES, RETURN_SECONDS
from torpor_notebook.lines import CONTINUE, KEEPALIVE, encode, ran_too_long
from torpor_notebook.running_time import sleep_running


class UnknownExecution(Exception):
    """It was never held here, or is held no more."""


class HeldExecution:
    """One execution, with the lines its client may not have yet.

    They are numbered from 0. Who asks for those from a number on has the ones before it, which are let go of. A stream ends
    with CONTINUE after PART_BYTES, to be gone on with; until then nothing that was sent is let go of, and the code waits once
    so much is kept. One stream is served: the latest.
    """

    def __init__(self, execution: Execution, limit_seconds: float, on_let_go: Callable[[], None]) -> None:
        self._execution = execution
        self._on_let_go = on_let_go
        self._first = 0
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._ended = self._disowned = False
        self._stream: object | None = None
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._carrying = asyncio.create_task(self._carry())
        self._limiting = asyncio.create_task(self._limit(limit_seconds)) if limit_seconds > 0 else None
        self._returning: asyncio.Task[None] | None = None
        self._await_return()

    def keeps(self, start: int) -> bool:
        """Whether a stream can go on with line number `start`."""
        return not self._disowned and self._first <= start <= self._first + len(self._kept)

    async def lines(self, start: int) -> AsyncGenerator[bytes, None]:
        """Encoded lines from number `start` on, and keepalives. Raises UnknownExecution when those are not kept."""
        if not self.keeps(start):
            raise UnknownExecution(f"The execution has no lines from {start} on any more")
        for line in self._kept[: start - self._first]:
            self._kept_bytes -= len(line)
        del self._kept[: start - self._first]
        self._first = next_line = start
        stream = self._stream = object()
        if self._returning is not None:
            self._returning.cancel()
        self._room.set()
        self._news.set()  # for the stream before, which is over
        sent_bytes = 0
        try:
            while self._stream is stream:
                if next_line < self._first + len(self._kept):
                    line = self._kept[next_line - self._first]
                    next_line += 1
                    sent_bytes += len(line)
                    yield line
                    if sent_bytes >= PART_BYTES:
                        yield encode(CONTINUE)
                        return
                elif self._ended:
                    return
                else:
                    self._news.clear()
                    try:
                        await asyncio.wait_for(self._news.wait(), KEEPALIVE_SECONDS)
                    except asyncio.TimeoutError:
                        yield encode(KEEPALIVE)
        finally:
            if self._stream is stream:
                self._stream = None
                self._await_return()

    def abandon(self) -> None:
        """Whoever waits for it has left: it is interrupted, and held no more."""
        self._execution.abandon()
        self._carrying.cancel()
        self._end()
        self._let_go()

    def disown(self) -> None:
        """Whoever waits for it waits in another machine, or was told that this one fell asleep: it goes on by itself, unheard."""
        self._disowned = True
        self._kept.clear()
        self._kept_bytes = 0
        self._room.set()
        self._let_go()

    async def until_carried(self) -> None:
        """Until its last line has come, or nobody wants it."""
        await asyncio.wait({self._carrying})

    async def _carry(self) -> None:
        while (line := await self._execution.next()) is not None:
            if self._disowned:
                continue
            self._keep(encode(line))
            while self._kept_bytes >= PART_BYTES:
                self._room.clear()
                await self._room.wait()
        self._end()

    def _keep(self, line: bytes) -> None:
        self._kept.append(line)
        self._kept_bytes += len(line)
        self._news.set()

    def _end(self) -> None:
        self._ended = True
        self._news.set()
        if self._limiting is not None:
            self._limiting.cancel()

    async def _limit(self, seconds: float) -> None:
        await sleep_running(seconds)
        self._limiting = None
        self._execution.abandon()
        self._carrying.cancel()
        if not self._disowned:
            self._keep(encode(ran_too_long(seconds)))
        self._end()

    def _await_return(self) -> None:
        self._returning = asyncio.create_task(self._abandon_unless_returned())

    async def _abandon_unless_returned(self) -> None:
        await sleep_running(RETURN_SECONDS)
        self._returning = None
        self.abandon()

    def _let_go(self) -> None:
        self._stream = None
        self._news.set()
        if self._returning is not None:
            self._returning.cancel()
        self._on_let_go()


class HeldExecutions:
    """Those of this machine, by the ids their clients gave them."""

    def __init__(self) -> None:
        self._by_id: dict[str, HeldExecution] = {}
        # Ids of clients that left before their execution had begun.
        self._left: set[str] = set()
        # Sandbox and generation, as restores tell them.
        self._machine: tuple[str | None, int] | None = None
        self._going_on: set[asyncio.Task[None]] = set()

    def start(self, id: str, execute: Callable[[], Execution], limit_seconds: float) -> HeldExecution:
        """The same id again gives the first, and executes nothing. Raises UnknownExecution, and what `execute` raises."""
        if id in self._left:
            raise UnknownExecution(f"Execution {id} was abandoned before it began")
        if id not in self._by_id:
            self._by_id[id] = HeldExecution(execute(), limit_seconds, lambda: self._let_go(id))
        return self._by_id[id]

    def get(self, id: str) -> HeldExecution:
        """Raises UnknownExecution."""
        held = self._by_id.get(id)
        if held is None:
            raise UnknownExecution(f"Execution {id} not found")
        return held

    def abandon(self, id: str) -> None:
        """Its client has left; also before it has begun."""
        held = self._by_id.get(id)
        if held is not None:
            held.abandon()
        else:
            self._left.add(id)
            asyncio.get_running_loop().call_later(RETURN_SECONDS, self._left.discard, id)

    def restored(self, env: dict[str, str], generation: int) -> None:
        """Told of each restore. A machine that is another one, or that has slept, has nobody any more who waits for an execution."""
        machine = (env.get("TORPOR_SANDBOX_ID"), generation)
        if self._machine is not None and machine != self._machine:
            for held in list(self._by_id.values()):
                held.disown()
        self._machine = machine

    def _let_go(self, id: str) -> None:
        # What nobody waits for goes on all the same, and the event loop keeps no task alive that nothing else refers to.
        going_on = asyncio.create_task(self._by_id.pop(id).until_carried())
        self._going_on.add(going_on)
        going_on.add_done_callback(self._going_on.discard)
