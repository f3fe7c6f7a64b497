"""Big files cost no memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unittest
from pathlib import Path
from typing import List

from .fake_server import SANDBOX_ID, Call, FakeServer, file_entry_wire

MIB = 1024 * 1024
#: TORPOR_TEST_TRANSFER_MIB=1024 for the full size; the memory used does not depend on it.
SIZE_BYTES = int(os.environ.get("TORPOR_TEST_TRANSFER_MIB") or 192) * MIB


@unittest.skipUnless(os.path.exists("/proc/self/status"), "this system has no /proc to measure memory by")
class Transfer(unittest.TestCase):
    def test_a_big_file_goes_up_and_down_with_flat_memory(self) -> None:
        uploads: List[int] = []

        def put(call: Call) -> None:
            uploads.append(sum(len(chunk) for chunk in call.body_chunks()))
            call.send_json(200, file_entry_wire(size=uploads[-1]))

        def get(call: Call) -> None:
            size = int(call.query["path"].rsplit("-", 1)[1])
            call.send_response(200)
            call.send_header("content-length", str(size))
            call.end_headers()
            chunk = b"\0" * (256 * 1024)
            for _ in range(size // len(chunk)):
                call.wfile.write(chunk)

        with FakeServer() as server:
            server.with_sandbox()
            server.on("PUT", "/v1/sandboxes/{id}/fs", put).on("GET", "/v1/sandboxes/{id}/fs", get)
            done = subprocess.run(
                [
                    sys.executable,
                    str(Path(__file__).with_name("transfer_program.py")),
                    server.url,
                    SANDBOX_ID,
                    str(SIZE_BYTES),
                ],
                stdout=subprocess.PIPE,
                check=True,
                timeout=300,
                env={
                    **os.environ,
                    "PYTHONPATH": str(Path(__file__).parents[1]),
                    "PYTHONDONTWRITEBYTECODE": "1",
                },
            )
        figures = json.loads(done.stdout)
        up, down, files = figures["seconds"]
        # After the test's own line, so that it stays whole.
        self.addClassCleanup(
            print,
            f"{SIZE_BYTES // MIB} MiB: up {up:.2f} s, down {down:.2f} s, to and from a local file {files:.2f} s, "
            f"peak memory grew by {figures['growth_bytes'] / MIB:.1f} MiB",
            file=sys.stderr,
        )
        self.assertEqual(uploads[-2:], [SIZE_BYTES, SIZE_BYTES])
        self.assertEqual((figures["received"], figures["saved"]), (SIZE_BYTES, SIZE_BYTES))
        self.assertLess(figures["growth_bytes"], 24 * MIB)
