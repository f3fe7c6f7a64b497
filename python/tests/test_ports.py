"""Preview URLs."""

from __future__ import annotations

import unittest
from typing import Any, List

import torpor

from .fake_server import Call, FakeServer

ID = "s" + "a" * 25
WIRE = {
    "id": "url_1",
    "sandbox_id": ID,
    "port": 3000,
    "host": f"3000-{ID}.localhost:7070",
    "auto_wake": False,
    "created_at": "2026-11-29T16:00:00Z",
    "expires_at": "2026-11-29T17:00:00Z",
    "revoked_at": None,
}


class Ports(unittest.TestCase):
    def setUp(self) -> None:
        self.server = FakeServer()
        self.addCleanup(self.server.close)
        self.server.on_json("GET", f"/v1/sandboxes/{ID}", 200, {"id": ID})
        self.sandbox = torpor.Sandbox.get(ID, client=self.server.client())

    def test_a_preview_url_is_made_listed_and_revoked(self) -> None:
        asked: List[Any] = []

        def make(call: Call) -> None:
            asked.append(call.json())
            call.send_json(201, {**WIRE, "url": "http://x/?torpor_token=tpv_1", "token": "tpv_1"})

        self.server.on("POST", f"/v1/sandboxes/{ID}/ports/3000/url", make)
        made = self.sandbox.preview_url(3000, expires_in_seconds=60)
        self.assertEqual(asked, [{"expires_in_seconds": 60}])
        self.assertEqual((made.url, made.token), ("http://x/?torpor_token=tpv_1", "tpv_1"))
        self.assertNotIn("tpv_1", repr(made))
        self.server.on_json("GET", f"/v1/sandboxes/{ID}/urls", 200, {"items": [WIRE]})
        self.assertEqual([each.host for each in self.sandbox.preview_urls()], [WIRE["host"]])
        self.server.on_json("DELETE", f"/v1/sandboxes/{ID}/urls/url_1", 200, WIRE)
        self.assertIs(self.sandbox.revoke_preview_url("url_1"), True)
        self.server.on(
            "DELETE", f"/v1/sandboxes/{ID}/urls/url_2", lambda call: call.send_failure(404, "not_found")
        )
        self.assertIs(self.sandbox.revoke_preview_url("url_2"), False)

    def test_the_owner_has_a_way_of_their_own_to_a_port(self) -> None:
        request = self.sandbox.port_request(3000, "api?q=1")
        self.assertEqual(request.url, f"{self.server.url}/v1/sandboxes/{ID}/ports/3000/api?q=1")
        self.assertRegex(request.headers["authorization"], "^Bearer .")
        self.assertNotIn("Bearer", repr(request))
        self.assertTrue(self.sandbox.port_request(3000).url.endswith("/ports/3000/"))
