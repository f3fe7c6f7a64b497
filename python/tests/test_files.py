"""Files up, down and looked at."""

from __future__ import annotations

import io
import os
import stat
import tempfile
import threading
import time
import unittest
from typing import Any, Iterator, List

import torpor
from torpor import Sandbox

from .fake_server import Call, FakeServer, file_entry_wire

MIB = 1024 * 1024


class Files(unittest.TestCase):
    def setUp(self) -> None:
        self.server = FakeServer().with_sandbox()
        self.addCleanup(self.server.close)
        self.files = Sandbox.create(client=self.server.client()).filesystem
        self.stored: List[bytes] = []
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def keep_uploads(self) -> None:
        def put(call: Call) -> None:
            self.stored.append(call.body())
            call.send_json(200, file_entry_wire(size=len(self.stored[-1])))

        self.server.on("PUT", "/v1/sandboxes/{id}/fs", put)

    def serve(self, data: bytes, status: int = 200) -> None:
        self.server.on("GET", "/v1/sandboxes/{id}/fs", lambda call: call.send(status, data))

    def last(self) -> Any:
        return self.server.calls[-1]

    def test_writes_text_bytes_files_and_streams_byte_for_byte(self) -> None:
        self.keep_uploads()
        every_byte = bytes(range(256)) * 4096

        def pieces() -> Iterator[Any]:
            yield b""
            yield "é"
            yield bytearray(b"1")
            yield memoryview(b"abcdef")[::2]
            yield every_byte

        class Reader:
            """No more than `read`."""

            def __init__(self) -> None:
                self.rest = [b"one", b"two"]

            def read(self, size: int = -1) -> bytes:
                return self.rest.pop(0) if self.rest else b""

        started = io.BytesIO(b"skipped" + every_byte)
        started.seek(7)
        for content, expected in (
            ("", b""),
            ("é漢😀", "é漢😀".encode()),
            (b"", b""),
            (every_byte, every_byte),
            (bytearray(b"x"), b"x"),
            (memoryview(b"abcdef")[::2], b"ace"),
            (started, every_byte),
            (io.BytesIO(b""), b""),
            (io.StringIO("zeile ä"), "zeile ä".encode()),
            (Reader(), b"onetwo"),
            (pieces(), "é".encode() + b"1ace" + every_byte),
            ([], b""),
            (["a", b"b"], b"ab"),
        ):
            with self.subTest(type(content).__name__, size=len(expected)):
                entry = self.files.write("/workspace/a", content)  # type: ignore[arg-type]
                self.assertEqual(self.stored[-1], expected)
                self.assertEqual(entry.size_bytes, len(expected))

    def test_mode_user_and_path_are_sent_encoded(self) -> None:
        self.keep_uploads()
        path = "/workspace/a b&c=ü?#%/😀\n"
        entry = self.files.write(path, "x", mode=0o755, user="root")
        self.assertEqual(self.last()["query"], {"path": path, "mode": "0755", "user": "root"})
        self.assertEqual((entry.name, entry.mode, entry.modified_at.microsecond), ("a.txt", 0o644, 123456))

    def test_content_of_a_wrong_type_is_refused(self) -> None:
        self.keep_uploads()
        for content in (None, 7, {"a": "b"}, [1, 2], "\ud800", iter([object()])):
            with self.subTest(repr(content)), self.assertRaises(torpor.InvalidRequestError):
                self.files.write("/a", content)  # type: ignore[arg-type]
        for mode in (-1, 0o10000):
            with self.subTest(mode), self.assertRaises(torpor.InvalidRequestError):
                self.files.write("/a", "x", mode=mode)
        with self.assertRaises(torpor.InvalidRequestError):
            self.files.read("/\udcff")

    def test_what_the_source_raises_stays_as_it_is_and_cuts_the_upload(self) -> None:
        whole: List[bytes] = []

        def put(call: Call) -> None:
            whole.append(call.body())

        self.server.on("PUT", "/v1/sandboxes/{id}/fs", put)
        for error in (
            OSError("the disk of the source"),
            KeyError("k"),
            torpor.TorporError("own", code="own"),
        ):

            def failing() -> Iterator[bytes]:
                yield b"x" * MIB
                raise error

            with self.subTest(error), self.assertRaises(type(error)) as caught:
                self.files.write("/a", failing())
            self.assertIs(caught.exception, error)
        self.assertEqual(whole, [])

    def test_a_file_that_shrinks_while_it_is_sent_is_an_error_not_a_short_upload(self) -> None:
        class Shrinking(io.BytesIO):
            def read(self, size: Any = -1) -> bytes:
                return super().read(min(size, 10)) if self.tell() < 20 else b""

        with self.assertRaises(OSError) as caught:
            self.files.write("/a", Shrinking(b"x" * 100))
        self.assertIn("80 bytes shorter", str(caught.exception))

    def test_replayable_content_is_sent_again_and_a_stream_is_not(self) -> None:
        turns = iter(range(100))

        def put(call: Call) -> None:
            self.stored.append(call.body())
            if next(turns) % 2 == 0:
                call.send_failure(503, "guest_unavailable", retryable=True, headers={"retry-after": "0"})
            else:
                call.send_json(200, file_entry_wire())

        self.server.on("PUT", "/v1/sandboxes/{id}/fs", put)
        self.files.write("/a", io.BytesIO(b"x" * MIB))
        self.assertEqual([len(data) for data in self.stored], [MIB, MIB])
        with self.assertRaises(torpor.UnavailableError):
            self.files.write("/a", iter([b"x"]))
        self.assertEqual(len(self.stored), 3)

    def test_a_refusal_in_the_middle_of_an_upload_ends_it_at_once(self) -> None:
        pulled: List[int] = []

        def endless() -> Iterator[bytes]:
            while len(pulled) < 4000:
                pulled.append(1)
                yield b"x" * 256 * 1024

        def refuse_and_close(call: Call) -> None:
            call.rfile.read(1000)
            call.close_connection = True
            call.send_failure(507, "no_space", "the sandbox's disk is full")

        over = threading.Event()
        self.addCleanup(over.set)

        def refuse_and_stay(call: Call) -> None:
            call.rfile.read(1000)
            call.send_failure(507, "no_space", "the sandbox's disk is full")
            over.wait(20)

        self.server.on("PUT", "/v1/sandboxes/{id}/fs", refuse_and_stay)
        begun = time.monotonic()
        with self.assertRaises(torpor.NoSpaceError):
            self.files.write("/a", endless(), call_timeout_seconds=10)
        self.assertLess(time.monotonic() - begun, 5)
        self.assertLess(len(pulled), 400)
        self.server.on("PUT", "/v1/sandboxes/{id}/fs", refuse_and_close)
        with self.assertRaises((torpor.NoSpaceError, torpor.ConnectionError)):
            self.files.write("/a", endless())

    def test_a_server_that_stops_reading_ends_in_a_timeout(self) -> None:
        done = threading.Event()
        self.addCleanup(done.set)
        self.server.on("PUT", "/v1/sandboxes/{id}/fs", lambda call: (done.wait(20), call.cut())[1])
        with self.assertRaises(torpor.TimeoutError):
            self.files.write("/a", (b"x" * MIB for _ in range(100)), call_timeout_seconds=0.5)

    def test_reads_text_bytes_and_parts(self) -> None:
        self.serve("é\n".encode() + b"\xff")
        self.assertEqual(self.files.read("/a"), "é\n\ufffd")
        self.assertEqual(self.files.read_bytes("/a"), "é\n".encode() + b"\xff")
        self.serve(b"cd", 206)
        self.assertEqual(self.files.read("/a", offset=2, length=2), "cd")
        self.assertEqual(self.last()["headers"]["range"], "bytes=2-3")
        self.files.read_bytes("/a", offset=7)
        self.assertEqual(self.last()["headers"]["range"], "bytes=7-")
        for offset, length in ((-1, None), (0, 0)):
            with self.assertRaises(torpor.InvalidRequestError):
                self.files.read("/a", offset=offset, length=length)
        self.serve(b"the whole")
        with self.assertRaises(torpor.TorporError):
            self.files.read("/a", length=2)
        self.serve(b"")
        self.assertEqual(self.files.read("/a"), "")

    def test_a_stream_is_a_file_object(self) -> None:
        data = os.urandom(3 * MIB + 7)
        self.serve(data)
        with self.files.read_stream("/a") as file:
            self.assertEqual(file.read(5), data[:5])
            self.assertEqual(file.read(MIB), data[5 : MIB + 5])
            self.assertEqual(file.read(), data[MIB + 5 :])
            self.assertEqual(file.read(), b"")
        self.serve(b"one\ntwo")
        with self.files.read_stream("/a") as file:
            self.assertEqual(list(file), [b"one\n", b"two"])

    def test_a_stream_that_is_left_early_cuts_the_connection(self) -> None:
        left = threading.Event()

        def endless(call: Call) -> None:
            call.begin_chunked("application/octet-stream")
            try:
                while True:
                    call.chunk(b"x" * MIB)
            finally:
                left.set()

        self.server.on("GET", "/v1/sandboxes/{id}/fs", endless)
        with self.files.read_stream("/a") as file:
            self.assertEqual(file.read(3), b"xxx")
        self.assertTrue(left.wait(5))

    def test_a_body_that_is_cut_off_is_never_taken_for_whole(self) -> None:
        def sized(call: Call) -> None:
            call.send_response(200)
            call.send_header("content-length", "100")
            call.end_headers()
            call.wfile.write(b"x" * 50)
            call.cut()

        def chunked(call: Call) -> None:
            call.begin_chunked()
            call.chunk(b"x" * 50)
            call.cut()

        target = os.path.join(self.folder, "kept")
        with open(target, "w") as file:
            file.write("old")
        for handler in (sized, chunked):
            self.server.on("GET", "/v1/sandboxes/{id}/fs", handler)
            for read in (
                lambda: self.files.read("/a"),
                lambda: self.files.read_stream("/a").read(),
                lambda: self.files.download("/a", target),
            ):
                with self.subTest(handler.__name__), self.assertRaises(torpor.ConnectionError) as caught:
                    read()
                self.assertIn("incomplete", str(caught.exception))
        with open(target) as file:
            self.assertEqual(file.read(), "old")
        self.assertEqual(os.listdir(self.folder), ["kept"])

    def test_uploads_and_downloads_local_files(self) -> None:
        self.keep_uploads()
        data = os.urandom(2 * MIB + 3)
        source, target = os.path.join(self.folder, "source"), os.path.join(self.folder, "target")
        with open(source, "wb") as file:
            file.write(data)
        self.files.upload(source, "/workspace/x", mode=0o600)
        self.assertEqual(self.stored, [data])
        self.assertEqual(self.last()["headers"]["content-length"], str(len(data)))
        self.files.upload(
            "/proc/self/status" if os.path.exists("/proc/self/status") else source, "/workspace/x"
        )
        self.assertGreater(len(self.stored[-1]), 10)
        self.serve(data)
        self.assertEqual(self.files.download("/workspace/x", target), len(data))
        with open(target, "rb") as file:
            self.assertEqual(file.read(), data)

    def test_a_download_keeps_the_mode_and_the_link_of_what_it_replaces(self) -> None:
        target, link = os.path.join(self.folder, "target"), os.path.join(self.folder, "link")
        with open(target, "w"):
            pass
        os.chmod(target, 0o640)
        os.symlink(target, link)
        self.serve(b"new")
        self.files.download("/a", link)
        self.assertTrue(os.path.islink(link))
        self.assertEqual(stat.S_IMODE(os.stat(target).st_mode), 0o640)
        with open(target) as file:
            self.assertEqual(file.read(), "new")

    def test_a_download_that_cannot_be_written_leaves_nothing(self) -> None:
        self.serve(b"x" * MIB)
        with self.assertRaises(IsADirectoryError):
            self.files.download("/a", self.folder)
        with self.assertRaises(FileNotFoundError):
            self.files.download("/a", os.path.join(self.folder, "missing", "x"))
        self.server.on("GET", "/v1/sandboxes/{id}/fs", lambda call: call.send_failure(404, "file_not_found"))
        with self.assertRaises(torpor.NotFoundError):
            self.files.download("/a", os.path.join(self.folder, "x"))
        self.assertEqual(os.listdir(self.folder), [])

    @unittest.skipUnless(os.path.exists("/dev/full"), "this system has no /dev/full")
    def test_a_full_local_disk_is_the_system_s_own_error(self) -> None:
        self.serve(b"x" * MIB)
        with self.assertRaises(OSError) as caught:
            self.files.download("/a", "/dev/full")
        self.assertNotIsInstance(caught.exception, torpor.TorporError)
