"""What is done before the golden snapshot is taken, so that no sandbox waits for it."""

from torpor_notebook.contexts import Contexts

# Touches what most first cells touch: compilation, display of a result, an error's traceback.
CELLS = ("1 + 1", "print('x')", "raise ValueError('x')", "%reset -f")


async def warm_up(contexts: Contexts) -> None:
    """Starts the default kernel and runs a few cells on it, which do not count."""
    context = await contexts.default("python")
    for code in CELLS:
        execution = context.execute(code, {}, counted=False)
        while await execution.next() is not None:
            pass
