"""The Python kernel: IPython's, with per-call environment and with data of tables and charts beside their pictures."""

import sys
from typing import Any

from IPython.core.formatters import BaseFormatter
from ipykernel.ipkernel import IPythonKernel
from traitlets import ObjectName, Unicode

from torpor_kernel.call_environment import call_environment
from torpor_kernel.chart_data import chart_of_figure
from torpor_kernel.inline_figures import show_figures_inline
from torpor_kernel.output_stream import OutputStream
from torpor_kernel.table_data import table_of_frame


class DataFormatter(BaseFormatter):
    """An extra representation of one class of objects, under a MIME type that E2B's clients know.

    The class is found by its name, so that no library is imported before the user does. It is not registered the way
    IPython offers: Matplotlib's inline mode takes registered printers of figures away.
    """

    print_method = ObjectName("_repr_e2b_")
    _return_type = dict
    class_module = ""
    class_name = ""

    def describe(self, value: Any) -> dict[str, Any] | None:
        raise NotImplementedError

    def __call__(self, value: Any) -> dict[str, Any] | None:
        if not self.enabled or not any(kind.__name__ == self.class_name and kind.__module__ == self.class_module for kind in type(value).__mro__):
            return None
        try:
            return self.describe(value)
        except Exception:
            return None  # a bonus: what it cannot be made of is shown without, and without a traceback


class TableFormatter(DataFormatter):
    format_type = Unicode("e2b/data")
    class_module, class_name = "pandas.core.frame", "DataFrame"

    def describe(self, value: Any) -> dict[str, Any] | None:
        return table_of_frame(value)


class ChartFormatter(DataFormatter):
    format_type = Unicode("e2b/chart")
    class_module, class_name = "matplotlib.figure", "Figure"

    def describe(self, value: Any) -> dict[str, Any] | None:
        return chart_of_figure(value)


class PythonKernel(IPythonKernel):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        formatter = self.shell.display_formatter
        for added in (TableFormatter(parent=formatter), ChartFormatter(parent=formatter)):
            formatter.formatters[added.format_type] = added
        formatter.active_types = list(formatter.formatters)

    def start(self) -> None:
        super().start()
        show_figures_inline(self.shell)

    async def execute_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        with call_environment(parent):
            await super().execute_request(stream, ident, parent)
        # Before the execution counts as over: what comes later belongs to none.
        for output in (sys.stdout, sys.stderr):
            if isinstance(output, OutputStream):
                output.drain()
