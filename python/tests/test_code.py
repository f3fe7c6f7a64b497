"""Code in notebook kernels."""

from __future__ import annotations

import json
import threading
import unittest
from typing import Any, List

import torpor
from torpor import Sandbox

from .fake_server import Call, FakeServer


class RunCode(unittest.TestCase):
    def setUp(self) -> None:
        self.server = FakeServer().with_sandbox()
        self.addCleanup(self.server.close)
        self.sandbox = Sandbox.create(client=self.server.client())

    def stream(self, *lines: Any) -> None:
        def send(call: Call) -> None:
            call.body()
            call.begin_chunked()
            for line in lines:
                call.line(line)
            call.end_chunked()

        self.server.on("POST", "/v1/sandboxes/{id}/code", send)

    def test_gives_output_results_and_the_value_of_the_last_expression(self) -> None:
        self.stream(
            {"type": "stdout", "text": "a", "timestamp": 1},
            {"type": "stderr", "text": "w", "timestamp": 2},
            {"type": "keepalive"},
            {"type": "result", "png": "iVBO", "is_main_result": False, "a_form_of_a_later_version": 1},
            {"type": "stdout", "text": "b", "timestamp": 3},
            {"type": "result", "text": "42", "html": "<b>42</b>", "data": {"x": [1]}, "is_main_result": True},
            {"type": "number_of_executions", "execution_count": 3},
        )
        pieces: List[Any] = []
        execution = self.sandbox.run_code(
            "6 * 7",
            timeout_seconds=5,
            on_stdout=pieces.append,
            on_stderr=pieces.append,
            on_result=lambda result: pieces.append(result.png),
        )
        self.assertEqual((execution.stdout, execution.stderr, execution.text), ("ab", "w", "42"))
        self.assertEqual(execution.results[1].data, {"x": [1]})
        self.assertEqual((execution.error, execution.execution_count, execution.truncated), (None, 3, False))
        self.assertEqual(pieces, ["a", "w", "iVBO", "b", None])
        self.assertEqual(json.loads(self.server.calls[-1]["body"]), {"code": "6 * 7", "timeout_seconds": 5})

    def test_an_exception_in_the_code_is_a_result(self) -> None:
        self.stream({"type": "error", "name": "ValueError", "value": "no", "traceback": ["line 1", "line 2"]})
        execution = self.sandbox.run_code("raise ValueError('no')", language="python")
        assert execution.error is not None
        self.assertEqual(
            (execution.error.name, execution.error.value, execution.error.traceback),
            ("ValueError", "no", "line 1\nline 2"),
        )

    def test_a_failure_of_the_sandbox_is_an_error(self) -> None:
        self.stream({"error": {"code": "sandbox_ended", "message": "gone"}})
        with self.assertRaises(torpor.SandboxEndedError):
            self.sandbox.run_code("1")
        self.server.on("POST", "/v1/sandboxes/{id}/code", lambda call: (call.begin_chunked(), call.cut())[1])
        with self.assertRaises(torpor.ConnectionError):
            self.sandbox.run_code("1")

    def test_endless_output_costs_bounded_memory(self) -> None:
        self.stream(*({"type": "stdout", "text": "x" * 1024 * 1024} for _ in range(6)))
        execution = self.sandbox.run_code("1")
        self.assertEqual((len(execution.stdout), execution.truncated), (4 * 1024 * 1024, True))

    def test_an_error_in_a_callback_interrupts_the_code(self) -> None:
        left = threading.Event()

        def send(call: Call) -> None:
            call.body()
            call.begin_chunked()
            call.line({"type": "stdout", "text": "a"})
            if call.wait_for_client_to_leave():
                left.set()

        self.server.on("POST", "/v1/sandboxes/{id}/code", send)
        with self.assertRaises(ZeroDivisionError):
            self.sandbox.run_code("1", on_stdout=lambda text: 1 / 0)
        self.assertTrue(left.wait(5))

    def test_contexts_are_made_used_and_ended(self) -> None:
        wire = {"id": "c1", "language": "python", "cwd": "/workspace"}
        self.server.on_json("POST", "/v1/sandboxes/{id}/code/contexts", 201, wire)
        self.server.on_json("GET", "/v1/sandboxes/{id}/code/contexts", 200, {"items": [wire]})
        self.server.on_json("POST", "/v1/sandboxes/{id}/code/contexts/c1/restart", 200, {})
        self.server.on_json("DELETE", "/v1/sandboxes/{id}/code/contexts/c1", 200, {})
        contexts = self.sandbox.code_contexts
        context = contexts.create(language="python")
        self.assertEqual(contexts.list(), [context])
        self.stream()
        self.sandbox.run_code("1", context=context)
        self.assertEqual(json.loads(self.server.calls[-1]["body"]), {"code": "1", "context_id": "c1"})
        contexts.restart(context)
        self.assertIs(contexts.remove("c1"), True)
        self.assertIs(contexts.remove("c2"), False)
