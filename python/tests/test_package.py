"""The package as it is installed."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import subprocess
import sys
import tempfile
import unittest
import venv
from pathlib import Path

import torpor

PACKAGE = Path(torpor.__file__).parent
ROOT = Path(__file__).parents[1]


def _why_not_installable() -> str:
    if not (ROOT / "pyproject.toml").is_file():
        return "there is no pyproject.toml beside the tests"
    for module in ("setuptools", "wheel", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            return f"this Python has no {module}"
    import setuptools

    if int(setuptools.__version__.split(".")[0]) < 61:
        return f"setuptools {setuptools.__version__} is older than 61"
    return ""


class Package(unittest.TestCase):
    def test_needs_the_standard_library_alone(self) -> None:
        standard = getattr(sys, "stdlib_module_names", None)
        if standard is None:
            self.skipTest("this Python does not list its standard library (3.10 and later do)")
        for path in PACKAGE.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.level == 0:
                    names = [node.module or ""]
                for name in names:
                    self.assertIn(name.split(".")[0], standard, f"{path.name} imports {name}")

    def test_every_public_name_is_there(self) -> None:
        for name in torpor.__all__:
            self.assertTrue(hasattr(torpor, name), name)
        self.assertEqual(sorted(set(torpor.__all__)), torpor.__all__)

    def test_every_public_method_says_what_it_does(self) -> None:
        for holder in (
            torpor.Sandbox,
            torpor.SandboxFilesystem,
            torpor.Torpor,
            torpor.Templates,
            torpor.ExecStream,
        ):
            for name, member in inspect.getmembers(holder, inspect.isroutine):
                if not name.startswith("_"):
                    self.assertTrue(inspect.getdoc(member), f"{holder.__name__}.{name}")

    def test_says_that_it_is_typed(self) -> None:
        self.assertTrue((PACKAGE / "py.typed").is_file())

    @unittest.skipIf(_why_not_installable(), _why_not_installable())
    def test_pip_installs_it_without_a_network(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            venv.create(folder, with_pip=True, system_site_packages=True)
            python = os.path.join(folder, "bin", "python")
            source = os.path.join(folder, "source")
            # pip builds in the folder it is given; the checkout stays as it is.
            subprocess.run(["cp", "-r", str(ROOT), source], check=True)
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            for argv in (
                [
                    python,
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--no-index",
                    "--no-build-isolation",
                    "--no-deps",
                    source,
                ],
                [
                    python,
                    "-c",
                    "import os, torpor; where = os.path.dirname(torpor.__file__); "
                    "assert 'site-packages' in where; os.stat(os.path.join(where, 'py.typed'))",
                ],
            ):
                done = subprocess.run(
                    argv,
                    cwd=folder,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    timeout=300,
                )
                self.assertEqual(done.returncode, 0, done.stdout.decode("utf-8", "replace"))
