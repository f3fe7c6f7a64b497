"""Events: streams that resume, and webhooks that are proven."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
import unittest
from typing import Any, Dict, List, Optional

from torpor import EventsExpiredError, Sandbox, TorporError, verify_webhook

from .fake_server import SANDBOX_ID, Call, FakeServer


def event_wire(seq: int, state: str = "running") -> Dict[str, Any]:
    return {
        "id": f"evt_{seq}",
        "type": f"sandbox.{state}",
        "at": "2026-11-29T16:00:00.000Z",
        "sandbox_id": SANDBOX_ID,
        "name": "nightly",
        "metadata": {"job_id": "41"},
        "tenant": "acme",
        "generation": 1,
        "state": state,
        "previous_state": "creating",
        "reason": None,
        "changes": {"on_expire": "hibernate"},
    }


def keepalive(seq: int) -> Dict[str, Any]:
    return {"type": "keepalive", "id": f"evt_{seq}"}


class Events(unittest.TestCase):
    def setUp(self) -> None:
        self.server = FakeServer().with_sandbox()
        self.addCleanup(self.server.close)

    def test_of_a_sandbox_are_typed_and_over_with_its_end(self) -> None:
        def serve(call: Call) -> None:
            call.begin_chunked()
            for line in (keepalive(3), event_wire(4), event_wire(5, "destroyed")):
                call.line(line)
            call.wait_for_client_to_leave()

        self.server.on("GET", "/v1/sandboxes/{id}/events", serve)
        sandbox = Sandbox.create(client=self.server.client())
        events = list(sandbox.events(types=["sandbox.running", "sandbox.destroyed"]))
        self.assertEqual([event.id for event in events], ["evt_4", "evt_5"])
        self.assertEqual(events[0].sandbox_id, SANDBOX_ID)
        self.assertEqual((events[0].name, events[0].metadata), ("nightly", {"job_id": "41"}))
        self.assertEqual(events[0].at.year, 2026)
        self.assertEqual(events[0].changes, {"on_expire": "hibernate"})

    def test_go_on_where_a_connection_broke(self) -> None:
        asked: List[Optional[str]] = []

        def serve(call: Call) -> None:
            asked.append(call.query.get("after"))
            if len(asked) == 3:
                call.send_failure(503, "store_unavailable", retryable=True)
                return
            call.begin_chunked()
            call.line({1: keepalive(7), 2: event_wire(8)}.get(len(asked), event_wire(9)))
            if len(asked) == 1:
                call.cut()
            elif len(asked) == 2:
                call.end_chunked()
            else:
                call.wait_for_client_to_leave()

        self.server.on("GET", "/v1/events", serve)
        seen: List[str] = []
        with self.server.client(max_retries=0).events(tenant="acme") as stream:
            for event in stream:
                seen.append(event.id)
                if len(seen) == 2:
                    break
            self.assertEqual(stream.last_id, "evt_8")
        self.assertEqual(seen, ["evt_8", "evt_9"])
        self.assertEqual(asked, [None, "evt_7", "evt_8", "evt_8"])

    def test_a_place_no_longer_kept_is_an_error_and_not_a_gap(self) -> None:
        self.server.on("GET", "/v1/events", lambda call: call.send_failure(410, "events_expired"))
        with self.assertRaises(EventsExpiredError):
            list(self.server.client().events(after="evt_1"))

    def test_not_followed_they_end_with_what_there_is(self) -> None:
        def serve(call: Call) -> None:
            call.begin_chunked()
            call.line(event_wire(1))
            call.end_chunked()

        self.server.on("GET", "/v1/events", serve)
        self.assertEqual(len(list(self.server.client().events(after="oldest", follow=False))), 1)

    def test_close_from_another_thread_ends_the_iteration(self) -> None:
        def serve(call: Call) -> None:
            call.begin_chunked()
            call.line(event_wire(1))
            call.wait_for_client_to_leave()

        self.server.on("GET", "/v1/events", serve)
        stream = self.server.client().events()
        threading.Timer(0.2, stream.close).start()
        began = time.monotonic()
        self.assertEqual(len(list(stream)), 1)
        self.assertLess(time.monotonic() - began, 5)


class Webhooks(unittest.TestCase):
    secret = "whsec_" + base64.b64encode(b"\7" * 32).decode()
    body = json.dumps(event_wire(5))

    def headers(self, timestamp: float, key: bytes = b"\7" * 32) -> Dict[str, str]:
        signed = f"evt_5.{int(timestamp)}.{self.body}".encode()
        digest = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        return {
            "Webhook-Id": "evt_5",
            "Webhook-Timestamp": str(int(timestamp)),
            "Webhook-Signature": f"v1a,x v1,%%% v1,{digest}",
        }

    def test_a_signed_request_is_its_event(self) -> None:
        event = verify_webhook(self.body, self.headers(time.time()), self.secret)
        self.assertEqual(event.id, "evt_5")
        self.assertEqual(
            verify_webhook(self.body.encode(), self.headers(time.time()), self.secret), event
        )

    def test_any_other_is_refused(self) -> None:
        now = time.time()
        for what, body, headers in (
            ("another secret", self.body, self.headers(now, b"\8" * 32)),
            ("a changed body", self.body.replace("acme", "evil"), self.headers(now)),
            ("an old one", self.body, self.headers(now - 600)),
            ("one of the future", self.body, self.headers(now + 600)),
            ("no headers", self.body, {}),
        ):
            with self.subTest(what), self.assertRaises(TorporError) as raised:
                verify_webhook(body, headers, self.secret)
            self.assertEqual(raised.exception.code, "webhook_invalid")
        for secret in ("", "whsec_", "whsec_%"):
            with self.subTest(secret), self.assertRaises(TorporError) as raised:
                verify_webhook(self.body, self.headers(now, b""), secret)
            self.assertEqual(raised.exception.code, "webhook_invalid")
