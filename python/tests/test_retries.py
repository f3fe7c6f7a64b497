"""Time limits, retries and error answers."""

from __future__ import annotations

import pickle
import time
import unittest
from typing import Any, Callable, List
from unittest import mock

import torpor
from torpor import Sandbox
from torpor._retry_delay import parse_retry_after, retry_delay_seconds

from .fake_server import SANDBOX_ID, Call, FakeServer, sandbox_wire


class Retries(unittest.TestCase):
    def setUp(self) -> None:
        self.server = FakeServer().with_sandbox()
        self.addCleanup(self.server.close)
        self.client = self.server.client()
        self.waits: List[float] = []

    def get(self, **options: Any) -> Sandbox:
        with mock.patch("torpor._transport.time.sleep", self.waits.append):
            return Sandbox.get(SANDBOX_ID, client=self.client, **options)

    def failing(self, times: int, fail: Callable[[Call], None]) -> None:
        turns = iter(range(1000))

        def get(call: Call) -> None:
            if next(turns) < times:
                fail(call)
            else:
                call.send_json(200, sandbox_wire())

        self.server.on("GET", "/v1/sandboxes/{id}", get)

    def test_503_is_tried_again_after_the_wait_the_server_asked_for(self) -> None:
        self.failing(
            2,
            lambda call: call.send_failure(
                503, "host_unavailable", retryable=True, headers={"retry-after": "2"}
            ),
        )
        self.assertEqual(self.get().id, SANDBOX_ID)
        self.assertEqual(len(self.waits), 2)
        self.assertTrue(all(2 <= wait <= 2.5 for wait in self.waits))

    def test_a_refused_connection_is_tried_for_longer_as_while_a_server_is_restarted(self) -> None:
        url = self.client._transport.connection.url
        self.server.close()
        server: List[FakeServer] = []

        def sleep(seconds: float) -> None:
            self.waits.append(seconds)
            if len(self.waits) == 12:
                server.append(FakeServer(port=int(url.rsplit(":", 1)[1])).with_sandbox())

        with mock.patch("torpor._transport.time.sleep", sleep):
            self.assertEqual(Sandbox.get(SANDBOX_ID, client=self.client).id, SANDBOX_ID)
            server[0].close()
            self.waits = [0.0] * 12
            with self.assertRaises(torpor.ConnectionError):
                Sandbox.get(SANDBOX_ID, client=self.server.client())
        self.assertEqual(len(self.waits), 12 + 24)
        self.assertTrue(7 < sum(self.waits) < 12)

    def test_429_ends_in_the_typed_error_once_the_retries_are_used_up(self) -> None:
        self.failing(
            99,
            lambda call: call.send_failure(429, "rate_limited", retryable=True, headers={"retry-after": "1"}),
        )
        with self.assertRaises(torpor.RateLimitError) as caught:
            self.get()
        self.assertEqual(caught.exception.retry_after_seconds, 1)
        self.assertEqual(len(self.server.calls), 4)

    def test_a_wait_that_is_too_long_is_the_caller_s_to_decide(self) -> None:
        self.failing(
            99,
            lambda call: call.send_failure(
                503, "host_unavailable", retryable=True, headers={"retry-after": "3600"}
            ),
        )
        with self.assertRaises(torpor.UnavailableError):
            self.get(call_timeout_seconds=0)
        self.assertEqual((self.waits, len(self.server.calls)), ([], 1))

    def test_a_wait_beyond_the_call_s_time_limit_is_not_begun(self) -> None:
        self.failing(
            99,
            lambda call: call.send_failure(
                503, "host_unavailable", retryable=True, headers={"retry-after": "30"}
            ),
        )
        with self.assertRaises(torpor.UnavailableError):
            self.get(call_timeout_seconds=5)
        self.assertEqual(self.waits, [])

    def test_a_broken_connection_is_tried_again_at_every_stage(self) -> None:
        def in_the_middle(call: Call) -> None:
            call.send_response(200)
            call.send_header("content-length", "1000")
            call.end_headers()
            call.wfile.write(b'{"id":')
            call.cut()

        for fail in (Call.cut, in_the_middle):
            with self.subTest(fail):
                self.failing(2, fail)
                self.assertEqual(self.get().id, SANDBOX_ID)

    def test_a_repeated_post_keeps_its_idempotency_key(self) -> None:
        turns = iter(range(1000))

        def create(call: Call) -> None:
            call.body()
            if next(turns) == 0:
                call.send_failure(503, "host_unavailable", retryable=True)
            else:
                call.send_json(201, sandbox_wire())

        self.server.on("POST", "/v1/sandboxes", create)
        with mock.patch("torpor._transport.time.sleep"):
            Sandbox.create(client=self.client)
        first, second = (call["headers"]["idempotency-key"] for call in self.server.calls)
        self.assertEqual(first, second)

    def test_what_would_fail_again_is_not_repeated(self) -> None:
        for status, code, expected in (
            (400, "invalid_request", torpor.InvalidRequestError),
            (401, "unauthenticated", torpor.AuthenticationError),
            (403, "permission_denied", torpor.PermissionError),
            (404, "sandbox_not_found", torpor.NotFoundError),
            (409, "conflict", torpor.ConflictError),
            (410, "sandbox_ended", torpor.SandboxEndedError),
            (500, "internal", torpor.TorporError),
            (507, "no_space", torpor.NoSpaceError),
            (418, "a_code_of_a_later_version", torpor.TorporError),
        ):
            with self.subTest(code):
                self.failing(99, lambda call: call.send_failure(status, code, "said"))
                before = len(self.server.calls)
                with self.assertRaises(expected) as caught:
                    self.get()
                error = caught.exception
                self.assertIs(type(error), expected)
                self.assertEqual((error.code, error.status, str(error)), (code, status, "said"))
                self.assertTrue((error.request_id or "").startswith("req-"))
                self.assertEqual(len(self.server.calls), before + 1)

    def test_no_room_is_not_too_many_requests(self) -> None:
        self.failing(99, lambda call: call.send_failure(429, "capacity_exhausted", retryable=True))
        with self.assertRaises(torpor.CapacityError):
            self.get()

    def test_answers_of_something_else_are_judged_by_their_status_and_quoted(self) -> None:
        for status, body, expected in (
            (502, b"<html>Bad Gateway</html>", torpor.UnavailableError),
            (404, b"\xff\xfe not text", torpor.NotFoundError),
            (400, b"{broken", torpor.InvalidRequestError),
            (403, b"", torpor.PermissionError),
            (500, b"[" * 100_000, torpor.TorporError),
            (500, b"x" * 2_000_000, torpor.TorporError),
        ):
            with self.subTest(status=status, body=body[:20]):
                self.failing(99, lambda call: call.send(status, body))
                with self.assertRaises(expected) as caught:
                    self.get()
                self.assertIn("check the URL and any proxy", str(caught.exception))
                self.assertLess(len(str(caught.exception)), 2000)

    def test_a_redirect_is_not_followed(self) -> None:
        self.failing(99, lambda call: call.send(302, b"", {"location": "http://127.0.0.1:1/elsewhere"}))
        with self.assertRaises(torpor.TorporError) as caught:
            self.get()
        self.assertIn("http://127.0.0.1:1/elsewhere", str(caught.exception))

    def test_an_answer_that_is_no_object_is_refused(self) -> None:
        for body in (b"", b"null", b"[]", b"{", b"<html>", b"{}", b'{"id": 7}'):
            with self.subTest(body):
                self.failing(99, lambda call: call.send(200, body))
                with self.assertRaises(torpor.TorporError) as caught:
                    self.get()
                self.assertEqual(caught.exception.code, "invalid_response")

    def test_a_silent_server_ends_in_a_timeout_of_the_whole_call(self) -> None:
        self.failing(99, lambda call: time.sleep(1.5))
        begun = time.monotonic()
        with self.assertRaises(torpor.TimeoutError) as caught:
            self.get(call_timeout_seconds=0.3)
        self.assertLess(time.monotonic() - begun, 1.2)
        self.assertIsInstance(caught.exception, TimeoutError)
        self.assertIn("0.3 s", str(caught.exception))
        self.assertEqual(len(self.server.calls), 1)

    def test_a_server_that_trickles_ends_in_a_timeout_of_the_whole_call(self) -> None:
        def trickle(call: Call) -> None:
            call.send_response(200)
            call.send_header("transfer-encoding", "chunked")
            call.end_headers()
            for _ in range(40):
                call.chunk(b" ")
                time.sleep(0.05)

        self.failing(99, trickle)
        begun = time.monotonic()
        with self.assertRaises(torpor.TimeoutError):
            self.get(call_timeout_seconds=0.4)
        self.assertLess(time.monotonic() - begun, 1.5)

    def test_a_limit_that_is_no_duration_is_refused(self) -> None:
        for limit in (-1, float("nan"), float("inf")):
            with self.subTest(limit), self.assertRaises(torpor.InvalidRequestError):
                self.get(call_timeout_seconds=limit)

    def test_errors_survive_pickling(self) -> None:
        details = {"issues": [{"path": "ttl_seconds", "message": "must be at least 1"}, 7, {"path": 1}]}
        self.failing(99, lambda call: call.send_failure(400, "invalid_request", "ttl", details=details))
        with self.assertRaises(torpor.InvalidRequestError) as caught:
            self.get()
        copy = pickle.loads(pickle.dumps(caught.exception))
        self.assertIs(type(copy), torpor.InvalidRequestError)
        self.assertEqual(copy.issues, [torpor.RequestIssue("ttl_seconds", "must be at least 1")])
        self.assertEqual((copy.code, copy.status, str(copy)), ("invalid_request", 400, "ttl"))


class RetryDelay(unittest.TestCase):
    def test_waits_grow_up_to_a_bound(self) -> None:
        waits = [retry_delay_seconds(attempt, None, lambda: 1.0) for attempt in range(8)]
        self.assertEqual(waits[:3], [0.2, 0.4, 0.8])
        self.assertEqual(max(waits), 5.0)
        self.assertEqual(retry_delay_seconds(10_000, None, lambda: 1.0), 5.0)

    def test_retry_after_is_seconds_or_a_date(self) -> None:
        now = 1_795_968_000.0
        self.assertEqual(parse_retry_after(" 12 ", now), 12)
        self.assertEqual(parse_retry_after("Sun, 29 Nov 2026 16:00:10 GMT", now), 10)
        self.assertEqual(parse_retry_after("Sun, 29 Nov 2020 16:00:10 GMT", now), 0)
        for header in (None, "", "soon", "-1", "1.5", "²"):
            self.assertIsNone(parse_retry_after(header, now))
