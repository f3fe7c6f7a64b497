"""Entry of a kernel process: start.py LANGUAGE -f CONNECTION_FILE."""

import os
import sys

_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

UNUSED = ("debugpy", "jedi")
# Set by the kernel for itself; the template's value is for scripts.
OWN_NAMES = frozenset({"MPLBACKEND"})


def main() -> None:
    language = sys.argv.pop(1)
    # Python put this script's folder first; what is imported below is ours, and afterwards the path is the user's.
    sys.path[0] = _FOLDER
    # Debugger and completer take a third of the kernel's memory, and nothing here asks for either.
    for unused in UNUSED:
        sys.modules[unused] = None  # type: ignore[assignment]
    import torpor_restore
    from torpor_kernel.app import KernelApp

    on_restore = None
    if language == "bash":
        from torpor_kernel.bash_kernel import BashKernel

        KernelApp.kernel_class = BashKernel
        on_restore = BashKernel.on_restore
    elif language == "javascript":
        from torpor_kernel.node_kernel import NodeKernel

        KernelApp.kernel_class = NodeKernel
        on_restore = NodeKernel.on_restore
    else:
        from torpor_kernel.python_kernel import PythonKernel

        KernelApp.kernel_class = PythonKernel
    for unused in UNUSED:
        del sys.modules[unused]  # the user may import them
    del sys.path[0]
    torpor_restore.listen(f"{language}-kernel", on_restore, OWN_NAMES)
    KernelApp.launch_instance()


if __name__ == "__main__":
    main()
