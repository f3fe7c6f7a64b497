"""The sandbox's environment, as kernels are started with it."""

import os

# Meant for this process alone.
OWN_NAMES = ("TORPOR_RUNTIME_DIR", "PWD", "OLDPWD")


def kernel_environment() -> dict[str, str]:
    """Everything this process was given, at its start and by restores since."""
    return {name: value for name, value in os.environ.items() if name not in OWN_NAMES}
