"""Time in which this machine runs: what it stands still, paused or written to an image, counts as one tick at most."""

import asyncio

TICK_SECONDS = 1.0
# A tick may be this late on a machine that runs, busy as it may be.
LATE_SECONDS = 1.0


async def sleep_running(seconds: float) -> None:
    clock = asyncio.get_running_loop().time
    while seconds > 0:
        tick, began = min(seconds, TICK_SECONDS), clock()
        await asyncio.sleep(tick)
        took = clock() - began
        seconds -= took if took <= tick + LATE_SECONDS else tick
