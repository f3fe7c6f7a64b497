"""The examples against a real server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .real_server import KEY, URL, RealServerCase

EXAMPLES = Path(__file__).parents[2] / "examples"


class Examples(RealServerCase):
    def run_example(self, name: str) -> str:
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / name)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=180,
            env={
                **os.environ,
                "TORPOR_URL": URL,
                "TORPOR_API_KEY": KEY,
                "PYTHONPATH": str(Path(__file__).parents[1]),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        )
        said = done.stdout.decode()
        self.assertEqual(done.returncode, 0, said)
        return said

    def test_ephemeral_prints_its_output_and_timings(self) -> None:
        self.assertRegex(
            self.run_example("ephemeral.py"),
            r"^Hello from Python 3[\d.]+\ncreate +[\d.]+ ms\nwrite +[\d.]+ ms\nexec +[\d.]+ ms\n$",
        )

    def test_stateful_finds_in_turn_two_what_turn_one_left(self) -> None:
        self.need("/v1/sessions", "/v1/sandboxes/{id}/hibernate", "/v1/sandboxes/{id}/code")
        said = self.run_example("stateful.py")
        for expected in (
            "turn 1: a new sandbox",
            "turn 2: the same sandbox",
            "first commit",
            "hello from a package",
            "variable: 42",
        ):
            self.assertIn(expected, said)
