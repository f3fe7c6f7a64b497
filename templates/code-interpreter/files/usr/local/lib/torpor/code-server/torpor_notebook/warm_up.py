"""What is done before somebody waits for it: for the golden snapshot, and in copies that wait for their user."""

import asyncio

from torpor_notebook.contexts import Contexts
from torpor_notebook.held_execution import HeldExecutions
from torpor_restore import Then

# Touches what most first cells touch: compilation, display of a result, an error's traceback.
CELLS = ("1 + 1", "print('x')", "raise ValueError('x')", "%reset -f")
REHEARSAL = ("1", "%reset -f")
REHEARSAL_SECONDS = 4.0


async def warm_up(contexts: Contexts) -> None:
    """Starts the default kernel and runs a few cells on it, which do not count."""
    await _run(contexts, CELLS)


def on_restore(contexts: Contexts, executions: HeldExecutions) -> Then:
    """For restores: runs a cell in a copy that is nobody's yet, since reading its memory in takes the first one 100 ms."""
    loop = asyncio.get_running_loop()

    def restored(env: dict[str, str], generation: int) -> None:
        loop.call_soon_threadsafe(executions.restored, env, generation)
        if generation == 0:
            work = asyncio.run_coroutine_threadsafe(_run(contexts, REHEARSAL), loop)
            try:
                work.result(REHEARSAL_SECONDS)
            except TimeoutError:
                pass  # it goes on; a copy that is slow is not worth losing

    return restored


async def _run(contexts: Contexts, cells: tuple[str, ...]) -> None:
    context = await contexts.default("python")
    for code in cells:
        execution = context.execute(code, {}, counted=False)
        while await execution.next() is not None:
            pass
