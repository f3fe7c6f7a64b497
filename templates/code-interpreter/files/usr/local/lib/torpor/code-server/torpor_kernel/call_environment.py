"""Environment variables that one execution has and the next has not."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

METADATA_KEY = "torpor_env_vars"


def variables_of(request: dict[str, Any]) -> dict[str, str]:
    """The variables that an execute request brings along."""
    found = request.get("metadata", {}).get(METADATA_KEY)
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


@contextmanager
def call_environment(request: dict[str, Any]) -> Iterator[None]:
    """Sets the request's variables, and afterwards puts back what they replaced."""
    variables = variables_of(request)
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
