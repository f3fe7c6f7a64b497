"""The same over TLS, where connections close and wait in other ways."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import tempfile
import threading
import time
import unittest
from typing import Iterator

import torpor
from torpor import Sandbox, Torpor

from .fake_server import SANDBOX_ID, Call, FakeServer, encoded, exec_end_line, file_entry_wire

MIB = 1024 * 1024


@unittest.skipUnless(shutil.which("openssl"), "this system has no openssl to make a certificate with")
class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.certificate, cls.key = os.path.join(folder.name, "cert.pem"), os.path.join(folder.name, "key.pem")
        argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=test"]
        argv += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", cls.key, "-out", cls.certificate]
        subprocess.run(argv, check=True, stderr=subprocess.DEVNULL, timeout=60)

    def setUp(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        self.server = FakeServer(tls=context).with_sandbox()
        self.addCleanup(self.server.close)
        self.client = self.server.client(ssl_context=ssl.create_default_context(cafile=self.certificate))

    def test_one_connection_carries_many_requests(self) -> None:
        for _ in range(5):
            Sandbox.get(SANDBOX_ID, client=self.client)
            time.sleep(0.02)
        self.assertLessEqual(len({call["connection"] for call in self.server.calls}), 2)

    def test_an_untrusted_certificate_is_told_and_not_tried_again(self) -> None:
        client = Torpor(self.server.url, "k")
        begun = time.monotonic()
        with self.assertRaises(torpor.ConnectionError) as caught:
            Sandbox.get(SANDBOX_ID, client=client)
        self.assertIn("ssl_context", str(caught.exception))
        self.assertFalse(caught.exception.retryable)
        self.assertLess(time.monotonic() - begun, 5)
        self.assertEqual(self.server.calls, [])

    def test_files_go_up_and_down_byte_for_byte(self) -> None:
        data = os.urandom(3 * MIB + 1)
        stored = []

        def put(call: Call) -> None:
            stored.append(call.body())
            call.send_json(200, file_entry_wire())

        self.server.on("PUT", "/v1/sandboxes/{id}/fs", put)
        self.server.on("GET", "/v1/sandboxes/{id}/fs", lambda call: call.send(200, data))
        files = Sandbox.get(SANDBOX_ID, client=self.client).filesystem
        files.write("/a", data)
        files.write("/a", (data[start : start + 100_000] for start in range(0, len(data), 100_000)))
        self.assertEqual(stored, [data, data])
        self.assertEqual(files.read_bytes("/a"), data)

    def test_a_refusal_in_the_middle_of_an_upload_ends_it(self) -> None:
        def endless() -> Iterator[bytes]:
            for _ in range(400):
                yield b"x" * MIB

        def refuse(call: Call) -> None:
            call.rfile.read(1000)
            call.close_connection = True
            call.send_failure(507, "no_space", "the sandbox's disk is full")

        self.server.on("PUT", "/v1/sandboxes/{id}/fs", refuse)
        files = Sandbox.get(SANDBOX_ID, client=self.client).filesystem
        with self.assertRaises((torpor.NoSpaceError, torpor.ConnectionError)):
            files.write("/a", endless(), call_timeout_seconds=10)

    def test_another_thread_can_end_a_stream(self) -> None:
        left = threading.Event()

        def send(call: Call) -> None:
            call.body()
            call.begin_chunked()
            call.line({"type": "stdout", "data": encoded(b"x")})
            if call.wait_for_client_to_leave():
                left.set()

        self.server.on("POST", "/v1/sandboxes/{id}/exec", send)
        stream = Sandbox.get(SANDBOX_ID, client=self.client).exec_stream("sleep 100")
        timer = threading.Timer(0.2, stream.close)
        timer.start()
        begun = time.monotonic()
        with self.assertRaises(torpor.TorporError):
            list(stream)
        self.assertLess(time.monotonic() - begun, 5)
        self.assertTrue(left.wait(5))
        timer.join()

    def test_a_cut_stream_is_lost_and_a_silent_one_times_out(self) -> None:
        over = threading.Event()
        self.addCleanup(over.set)

        def cut(call: Call) -> None:
            call.begin_chunked()
            call.line({"type": "start", "exec_id": "x5", "pid": 7})
            call.cut()

        def silent(call: Call) -> None:
            call.begin_chunked()
            over.wait(20)

        sandbox = Sandbox.get(SANDBOX_ID, client=self.client)
        self.server.on("POST", "/v1/sandboxes/{id}/exec", cut)
        with self.assertRaises(torpor.ConnectionError):
            sandbox.exec("x", on_stdout=print)
        self.server.on("POST", "/v1/sandboxes/{id}/exec", silent)
        with self.assertRaises(torpor.TimeoutError):
            sandbox.exec("x", on_stdout=print, call_timeout_seconds=0.4)

    def test_output_streams(self) -> None:
        def send(call: Call) -> None:
            call.body()
            call.begin_chunked()
            for _ in range(50):
                call.line({"type": "stdout", "data": encoded(b"x" * 30_000)})
            call.line(exec_end_line())
            call.end_chunked()

        self.server.on("POST", "/v1/sandboxes/{id}/exec", send)
        sandbox = Sandbox.get(SANDBOX_ID, client=self.client)
        self.assertEqual(len(sandbox.exec("x", on_stdout=lambda text: None).stdout), 1_500_000)
