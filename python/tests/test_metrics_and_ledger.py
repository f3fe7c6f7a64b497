"""What a sandbox uses over time, and who held what."""

from __future__ import annotations

import unittest
from datetime import datetime, timezone
from typing import Any, List

import torpor

from .fake_server import Call, FakeServer

ID = "s" + "a" * 25


class MetricsAndLedger(unittest.TestCase):
    def setUp(self) -> None:
        self.server = FakeServer()
        self.addCleanup(self.server.close)
        self.client = self.server.client()

    def test_metrics_are_what_the_sandbox_used_from_one_time_to_another(self) -> None:
        asked: List[str] = []
        wire = {
            "at": "2026-11-30T12:00:00.000Z",
            "cpu_used_percent": 12.5,
            "memory_used_bytes": 1,
            "memory_cache_bytes": 2,
            "disk_used_bytes": 3,
        }

        def answer(call: Call) -> None:
            asked.append(call.path)
            call.send_json(200, {"items": [wire]})

        self.server.on_json("GET", f"/v1/sandboxes/{ID}", 200, {"id": ID})
        self.server.on("GET", f"/v1/sandboxes/{ID}/metrics", answer)
        sandbox = torpor.Sandbox.get(ID, client=self.client)
        noon = datetime(2026, 11, 30, 12, tzinfo=timezone.utc)
        self.assertEqual(sandbox.metrics(), [torpor.SandboxSample(noon, 12.5, 1, 2, 3)])
        sandbox.metrics(since=noon, until=datetime(2026, 11, 30, 13))
        self.assertIn("from=2026-11-30T12%3A00%3A00%2B00%3A00", asked[1])
        self.assertIn("to=2026-11-30T13%3A00%3A00%2B00%3A00", asked[1])

    def test_the_ledger_is_listed_signed_and_exported(self) -> None:
        entry = {
            "v": 1,
            "seq": 7,
            "prev": "a",
            "at": "2026-11-30T12:00:00.000Z",
            "action": "bind",
            "account": "default",
            "tenant": "acme",
            "sandbox_id": ID,
            "generation": 1,
            "host": "h",
            "actor": "key_1",
            "reason": "create",
            "resources": [{"kind": "machine", "id": "m", "number": 1, "source": "pool"}],
            "hash": "b",
        }
        pages: List[Any] = [
            {"items": [entry], "next_cursor": "7"},
            {"items": [{**entry, "seq": 6, "action": "deny", "route": "GET /x", "count": 3}], "next_cursor": None},
        ]
        self.server.on("GET", "/v1/ledger", lambda call: call.send_json(200, pages.pop(0)))
        newest, denied = list(self.client.ledger.list(tenant="acme", page_size=1))
        self.assertEqual((newest.seq, newest.hash, newest.prev, newest.route), (7, "b", "a", None))
        self.assertEqual(newest.resources[0]["source"], "pool")
        self.assertEqual((denied.action, denied.route, denied.count), ("deny", "GET /x", 3))
        head = {"ledger": "l", "seq": 1, "hash": "b"}
        self.server.on_json("GET", "/v1/ledger/checkpoint", 200, {**head, "signature": "s"})
        self.assertEqual(self.client.ledger.checkpoint()["signature"], "s")
        lines = [head, {"entry": "{}", "hash": "b"}]

        def export(call: Call) -> None:
            call.begin_chunked()
            for line in lines:
                call.line(line)
            call.end_chunked()

        self.server.on("GET", "/v1/ledger/export", export)
        self.assertEqual(list(self.client.ledger.export()), lines)
