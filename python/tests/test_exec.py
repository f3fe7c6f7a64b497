"""Commands."""

from __future__ import annotations

import json
import signal
import threading
import time
import unittest
from typing import Any, List

import torpor
from torpor import ExecEnded, ExecOutput, ExecStarted, Sandbox

from .fake_server import Call, FakeServer, encoded, exec_end_line, exec_wire


class Exec(unittest.TestCase):
    def setUp(self) -> None:
        self.server = FakeServer().with_sandbox()
        self.addCleanup(self.server.close)
        self.sandbox = Sandbox.create(client=self.server.client(max_retries=1))

    def answer(self, **more: Any) -> None:
        self.server.on_json("POST", "/v1/sandboxes/{id}/exec", 200, exec_wire(**more))

    def stream(self, *lines: Any) -> None:
        def send(call: Call) -> None:
            call.body()
            call.begin_chunked()
            for line in lines:
                call.line(line)
            call.end_chunked()

        self.server.on("POST", "/v1/sandboxes/{id}/exec", send)

    def sent(self) -> Any:
        return json.loads(self.server.calls_to("POST", "/exec")[-1]["body"])

    def test_gives_the_whole_result(self) -> None:
        self.answer(
            stdout="out\n", stderr="err\n", exit_code=3, stdout_bytes=4, stderr_bytes=4, duration_ms=12.5
        )
        result = self.sandbox.exec("make", timeout_seconds=60)
        self.assertEqual((result.stdout, result.stderr, result.exit_code), ("out\n", "err\n", 3))
        self.assertEqual((result.outcome, result.signal, result.truncated), ("exited", None, False))
        self.assertEqual((result.duration_ms, result.exec_id, result.message), (12.5, "x1", None))
        self.assertEqual(self.sent(), {"cmd": "make", "timeout_seconds": 60})

    def test_sends_every_option_by_its_wire_name(self) -> None:
        self.answer()
        self.sandbox.exec(
            ("ls", "-l"),
            cwd="/tmp",
            env={"A": "b"},
            user="root",
            stdin="in",
            timeout_seconds=1.5,
            max_output_bytes=10,
        )
        self.assertEqual(
            self.sent(),
            {
                "cmd": ["ls", "-l"],
                "cwd": "/tmp",
                "env": {"A": "b"},
                "user": "root",
                "stdin": "in",
                "timeout_seconds": 1.5,
                "max_output_bytes": 10,
            },
        )

    def test_bytes_are_exact(self) -> None:
        every_byte = bytes(range(256))
        self.answer(stdout=encoded(every_byte), stderr="", encoding="base64")
        result = self.sandbox.exec("cat", binary=True)
        self.assertEqual(result.stdout, every_byte)
        self.assertEqual(self.sent()["encoding"], "base64")

    def test_a_failure_is_a_result_and_with_check_an_error_that_holds_it(self) -> None:
        for more, said in (
            ({"exit_code": 2, "stderr": "no such file"}, "exited with 2:\nno such file"),
            ({"exit_code": None, "outcome": "signalled", "signal": "SIGKILL"}, "was ended by SIGKILL"),
            ({"exit_code": None, "outcome": "timed_out", "duration_ms": 1000}, "timeout_seconds"),
            ({"exit_code": None, "outcome": "oom", "message": "300 MB"}, "ran out of memory (300 MB)"),
            ({"exit_code": None, "outcome": "lost", "message": "the host died"}, "the host died"),
        ):
            with self.subTest(said):
                self.answer(**more)
                self.assertNotEqual(self.sandbox.exec("x").exit_code, 0)
                with self.assertRaises(torpor.CommandError) as caught:
                    self.sandbox.exec("x" * 1000, check=True)
                self.assertIn(said, str(caught.exception))
                self.assertEqual(caught.exception.result.exit_code, more["exit_code"])
                self.assertLess(len(str(caught.exception)), 1500)

    def test_what_cannot_be_sent_is_refused_before_it_is(self) -> None:
        before = len(self.server.calls)
        for cmd, options in (
            (b"bytes", {}),
            ("x", {"timeout_seconds": 0}),
            ("x", {"timeout_seconds": -1}),
            ("x", {"timeout_seconds": float("nan")}),
            ("x", {"timeout_seconds": float("inf")}),
            ("x", {"stdin": b"bytes"}),
            ("x", {"idempotency_key": "with space"}),
            ("x", {"idempotency_key": "k\r\nx-evil: 1"}),
            ("x", {"idempotency_key": ""}),
            (["x", b"bytes"], {}),
        ):
            with self.subTest(cmd=cmd, **options), self.assertRaises(torpor.InvalidRequestError):
                self.sandbox.exec(cmd, **options)  # type: ignore[call-overload]
        self.assertEqual(len(self.server.calls), before)

    def test_output_comes_to_the_callbacks_as_it_is_written(self) -> None:
        seen = threading.Event()

        def send(call: Call) -> None:
            call.begin_chunked()
            call.line({"type": "start", "exec_id": "x1", "pid": 7})
            call.line({"type": "stdout", "data": encoded(b"first")})
            call.line({"type": "keepalive"})
            self.assertTrue(seen.wait(5), "the first output was held back")
            call.line({"type": "stderr", "data": encoded(b"second")})
            call.line(exec_end_line(stdout_bytes=5, stderr_bytes=6))
            call.end_chunked()

        self.server.on("POST", "/v1/sandboxes/{id}/exec", send)
        pieces: List[str] = []

        def on_stdout(text: str) -> None:
            pieces.append(text)
            seen.set()

        result = self.sandbox.exec("x", on_stdout=on_stdout, on_stderr=pieces.append)
        self.assertEqual(pieces, ["first", "second"])
        self.assertEqual((result.stdout, result.stderr, result.stdout_bytes), ("first", "second", 5))

    def test_no_character_is_cut_in_two(self) -> None:
        text = "aé漢😀z"
        data = text.encode()
        pieces: List[str] = []
        self.stream(
            *({"type": "stdout", "data": encoded(data[i : i + 1])} for i in range(len(data))), exec_end_line()
        )
        result = self.sandbox.exec("x", on_stdout=pieces.append)
        self.assertEqual(("".join(pieces), result.stdout), (text, text))
        self.assertNotIn("\ufffd", "".join(pieces))
        self.stream({"type": "stdout", "data": encoded(b"ok\xff\xf0\x9f")}, exec_end_line())
        self.assertEqual(self.sandbox.exec("x", on_stdout=pieces.append).stdout, "ok\ufffd\ufffd")

    def test_events_come_in_order_and_the_connection_is_kept(self) -> None:
        self.stream(
            {"type": "start", "exec_id": "x9", "pid": 12},
            {"type": "stdout", "data": encoded(b"\x00\xff"), "dropped_bytes": 5},
            {"type": "something_of_a_later_version"},
            exec_end_line(exec_id="x9", exit_code=0),
        )
        with self.sandbox.exec_stream("x", binary=True) as stream:
            started, output, ended = list(stream)
        self.assertEqual(started, ExecStarted("x9", 12))
        self.assertEqual([event.type for event in (started, output, ended)], ["start", "stdout", "end"])
        self.assertEqual(output, ExecOutput("stdout", b"\x00\xff", 5))
        assert isinstance(ended, ExecEnded)
        self.assertTrue(ended.result.truncated)
        self.assertEqual(stream.result.stdout, b"\x00\xff")
        self.sandbox.refresh()
        self.assertEqual(len({call["connection"] for call in self.server.calls}), 1)

    def test_output_beyond_the_limit_is_dropped_and_said_so(self) -> None:
        self.stream(
            *({"type": "stdout", "data": encoded("é".encode() * 500)} for _ in range(4)), exec_end_line()
        )
        count: List[int] = []
        result = self.sandbox.exec("x", max_output_bytes=1001, on_stdout=lambda text: count.append(len(text)))
        self.assertEqual((result.stdout, result.truncated, sum(count)), ("é" * 500, True, 2000))

    def test_a_connection_lost_in_the_middle_is_an_error_that_names_the_command(self) -> None:
        def cut(call: Call) -> None:
            call.begin_chunked()
            call.line({"type": "start", "exec_id": "x5", "pid": 7})
            call.cut()

        def end_early(call: Call) -> None:
            call.begin_chunked()
            call.line({"type": "start", "exec_id": "x5", "pid": 7})
            call.end_chunked()

        for handler in (cut, end_early):
            with self.subTest(handler):
                self.server.on("POST", "/v1/sandboxes/{id}/exec", handler)
                with self.assertRaises(torpor.ConnectionError) as caught:
                    self.sandbox.exec("x", on_stdout=print)
                self.assertEqual(caught.exception.details["exec_id"], "x5")
                self.assertFalse(caught.exception.retryable)

    def test_an_error_in_the_middle_and_nonsense_are_typed_errors(self) -> None:
        for line, expected in (
            (
                {
                    "type": "error",
                    "error": {"code": "sandbox_ended", "message": "gone", "details": {"reason": "oom"}},
                },
                torpor.SandboxEndedError,
            ),
            ([1, 2], torpor.TorporError),
            ({"type": "stdout", "data": "no base64!"}, torpor.TorporError),
            ({"type": "stdout", "data": 7}, torpor.TorporError),
        ):
            with self.subTest(line):
                self.stream({"type": "start", "exec_id": "x5", "pid": 7}, line)
                with self.assertRaises(expected):
                    self.sandbox.exec("x", on_stdout=print)

    def test_an_endless_line_is_refused(self) -> None:
        def send(call: Call) -> None:
            call.begin_chunked()
            for _ in range(40):
                call.chunk(b"x" * 1024 * 1024)

        self.server.on("POST", "/v1/sandboxes/{id}/exec", send)
        with self.assertRaises(torpor.TorporError) as caught:
            self.sandbox.exec("x", on_stdout=print)
        self.assertEqual(caught.exception.code, "invalid_response")

    def test_leaving_early_closes_the_connection(self) -> None:
        left = threading.Event()

        def send(call: Call) -> None:
            call.body()
            call.begin_chunked()
            call.line({"type": "start", "exec_id": "x1", "pid": 7})
            call.line({"type": "stdout", "data": encoded(b"x")})
            if call.wait_for_client_to_leave():
                left.set()

        class Stop(Exception):
            pass

        def stop(_text: str) -> None:
            raise Stop

        def by_callback() -> None:
            with self.assertRaises(Stop):
                self.sandbox.exec("sleep 100", on_stdout=stop)

        def by_leaving() -> None:
            with self.sandbox.exec_stream("sleep 100") as stream:
                for _event in stream:
                    break
            with self.assertRaises(torpor.TorporError):
                _ = stream.result

        def by_silence() -> None:
            with self.assertRaises(torpor.TimeoutError):
                self.sandbox.exec("sleep 100", on_stdout=lambda text: None, call_timeout_seconds=0.3)

        self.server.on("POST", "/v1/sandboxes/{id}/exec", send)
        for leave in (by_callback, by_leaving, by_silence):
            with self.subTest(leave.__name__):
                left.clear()
                leave()
                self.assertTrue(left.wait(5), "the server still sees the client")

    @unittest.skipUnless(hasattr(signal, "pthread_kill"), "this system has no signals for threads")
    def test_an_interrupt_ends_the_call_and_the_connection(self) -> None:
        left = threading.Event()

        def wait(call: Call) -> None:
            call.body()
            if call.wait_for_client_to_leave():
                left.set()

        self.server.on("POST", "/v1/sandboxes/{id}/exec", wait)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        timer = threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        timer.start()
        with self.assertRaises(KeyboardInterrupt):
            self.sandbox.exec("sleep 100")
        self.assertTrue(left.wait(5))
        timer.join()

    def test_another_thread_can_end_a_stream(self) -> None:
        def send(call: Call) -> None:
            call.body()
            call.begin_chunked()
            call.line({"type": "start", "exec_id": "x1", "pid": 7})
            call.wait_for_client_to_leave()

        self.server.on("POST", "/v1/sandboxes/{id}/exec", send)
        stream = self.sandbox.exec_stream("sleep 100")
        timer = threading.Timer(0.2, stream.close)
        timer.start()
        begun = time.monotonic()
        with self.assertRaises(torpor.TorporError) as caught:
            list(stream)
        self.assertIn("closed by this program", str(caught.exception))
        self.assertLess(time.monotonic() - begun, 5)
        timer.join()

    def test_a_long_command_is_read_as_a_stream(self) -> None:
        self.stream(exec_end_line(exit_code=0))
        self.assertEqual(self.sandbox.exec("x", timeout_seconds=3600).exit_code, 0)
        self.assertEqual(
            self.server.calls_to("POST", "/exec")[-1]["headers"]["accept"], "application/x-ndjson"
        )

    def test_a_background_command_is_started_followed_and_killed(self) -> None:
        self.server.on_json("POST", "/v1/sandboxes/{id}/exec", 202, {"exec_id": "b1", "pid": 42})

        def output(call: Call) -> None:
            call.begin_chunked()
            call.line({"type": "stdout", "data": encoded(b"served")})
            call.line(exec_end_line(exec_id="b1", exit_code=4))
            call.end_chunked()

        self.server.on("GET", "/v1/sandboxes/{id}/processes/b1/output", output)
        self.server.on_json("POST", "/v1/sandboxes/{id}/processes/b1/signal", 200, {"signal": "SIGTERM"})
        command = self.sandbox.start("server", env={"P": "1"}, keep_stdin_open=True)
        self.assertEqual((command.exec_id, command.pid), ("b1", 42))
        self.assertEqual(
            self.sent(),
            {
                "cmd": "server",
                "env": {"P": "1"},
                "timeout_seconds": 86400,
                "background": True,
                "keep_stdin_open": True,
            },
        )
        self.assertEqual(command.wait().stdout, "served")
        with self.assertRaises(torpor.CommandError):
            command.wait(check=True)
        self.server.on_json(
            "POST", "/v1/sandboxes/{id}/processes/b1/stdin", 200, {"bytes": 3, "closed": True}
        )
        command.write_stdin("é\n", close=True)
        written = self.server.calls_to("POST", "/stdin")[0]
        self.assertEqual((written["body"], written["query"]), ("é\n".encode(), {"close": "true"}))
        self.assertTrue(command.kill("SIGTERM"))
        self.server.on(
            "POST",
            "/v1/sandboxes/{id}/processes/b1/signal",
            lambda call: call.send_failure(404, "process_not_found"),
        )
        self.assertFalse(self.sandbox.kill("b1"))

    def test_processes_are_listed(self) -> None:
        process = {
            "pid": 3,
            "exec_id": "b1",
            "cmd": "bash",
            "args": ["-l"],
            "cwd": "/",
            "user": "user",
            "tag": None,
            "started_at": "2026-11-29T16:00:00Z",
        }
        self.server.on_json("GET", "/v1/sandboxes/{id}/processes", 200, {"items": [process]})
        [listed] = self.sandbox.processes()
        self.assertEqual((listed.pid, listed.exec_id, listed.args), (3, "b1", ["-l"]))
