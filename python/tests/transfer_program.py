"""Run by test_transfer in a process of its own: moves the bytes up and down and tells how memory went."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from typing import Iterator

from torpor import Sandbox, Torpor

CHUNK = b"\0" * (256 * 1024)


def zeros(size_bytes: int) -> Iterator[bytes]:
    for _ in range(size_bytes // len(CHUNK)):
        yield CHUNK


def peak_bytes() -> int:
    # Not `ru_maxrss`, which begins at the size of the process that started this one.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def main(url: str, sandbox_id: str, size_bytes: int) -> None:
    files = Sandbox.get(sandbox_id, client=Torpor(url, "tp_test")).filesystem
    with tempfile.TemporaryDirectory() as folder:
        local = os.path.join(folder, "local")
        # Once small, so that what is loaded on first use does not count.
        files.write("/warm", zeros(4 * len(CHUNK)))
        files.download(f"/down-{len(CHUNK)}", local)
        files.upload(local, "/warm")
        before = peak_bytes()
        marks = [time.monotonic()]
        files.write("/up", zeros(size_bytes))
        marks.append(time.monotonic())
        received = 0
        with files.read_stream(f"/down-{size_bytes}") as stream:
            while True:
                chunk = stream.read(len(CHUNK))
                if not chunk:
                    break
                received += len(chunk)
        marks.append(time.monotonic())
        files.download(f"/down-{size_bytes}", local)
        saved = os.path.getsize(local)
        files.upload(local, "/up")
        marks.append(time.monotonic())
    figures = {"received": received, "saved": saved, "growth_bytes": peak_bytes() - before}
    print(json.dumps({**figures, "seconds": [after - begun for begun, after in zip(marks, marks[1:])]}))


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
