"""Shows Matplotlib's figures after the cell that draws them, from the very first cell on."""

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

INLINE_BACKEND = "module://matplotlib_inline.backend_inline"
PYPLOT = "matplotlib.pyplot"


def show_figures_inline(shell: Any) -> None:
    """Switches inline mode on once pyplot is imported, by whatever library.

    Left to itself, Matplotlib loads its backend at the first figure, which is too late for the cell that draws it.
    A backend that the user has chosen stays.
    """

    def switch_on() -> None:
        import matplotlib

        if matplotlib.rcParams._get_backend_or_none() == INLINE_BACKEND:
            shell.enable_matplotlib("inline")

    if PYPLOT in sys.modules:
        switch_on()
    else:
        sys.meta_path.insert(0, _AfterImport(PYPLOT, switch_on))


class _AfterImport(MetaPathFinder):
    """Calls `then` once, when the module has been imported."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_then(module: ModuleType) -> None:
            execute(module)
            try:
                self._then()
            except Exception as error:  # pictures are not worth a failed import
                print(f"Figures will not be shown: {error}", file=sys.stderr)

        spec.loader.exec_module = execute_then  # type: ignore[method-assign]
        return spec
