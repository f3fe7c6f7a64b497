"""Templates and API keys."""

from __future__ import annotations

import json
import unittest
from typing import Any, List

import torpor

from .fake_server import Call, FakeServer


class TemplatesAndKeys(unittest.TestCase):
    def setUp(self) -> None:
        self.server = FakeServer()
        self.addCleanup(self.server.close)
        self.client = self.server.client()

    WIRE = {
        "name": "base",
        "hash": "h",
        "description": "d",
        "size_bytes": 1,
        "built_at": "2026-11-29T16:00:00Z",
        "golden": ["gvisor"],
    }

    def test_templates_are_listed_built_and_removed(self) -> None:
        self.server.on_json("GET", "/v1/templates", 200, {"items": [self.WIRE]}).on_json(
            "GET", "/v1/templates/base", 200, self.WIRE
        )
        self.assertEqual([each.name for each in self.client.templates.list()], ["base"])
        self.assertEqual(self.client.templates.get("base").golden, ["gvisor"])

        def build(call: Call) -> None:
            call.begin_chunked()
            call.line({"type": "progress", "stage": "root", "label": "Packages", "fraction": 0.5})
            call.line({"type": "done", "template": self.WIRE, "cached": True})
            call.end_chunked()

        self.server.on("POST", "/v1/templates/base/build", build)
        seen: List[Any] = []
        built = self.client.templates.build("base", on_progress=seen.append)
        self.assertEqual((built.template.name, built.cached, seen[0].fraction), ("base", True, 0.5))
        self.server.on(
            "DELETE", "/v1/templates/base", lambda call: (call.send_response(204), call.end_headers())[1]
        )
        self.assertIs(self.client.templates.remove("base"), True)
        self.server.on(
            "DELETE", "/v1/templates/base", lambda call: call.send_failure(404, "template_not_found")
        )
        self.assertIs(self.client.templates.remove("base"), False)

    def test_usage_is_added_up_and_budgets_are_set(self) -> None:
        total = {"cost": 1.5, "vcpu_seconds": 3600}
        self.server.on_json(
            "GET",
            "/v1/usage",
            200,
            {
                "from": "2026-11-01T00:00:00.000Z",
                "to": "2026-11-30T00:00:00.000Z",
                "prices": {"currency": "USD"},
                "items": [{"tenant": "acme", "day": "2026-11-02", **total}],
                "total": total,
            },
        )
        report = self.client.usage.get(group_by=["tenant", "day"], tenant="acme")
        self.assertEqual((report.items[0]["tenant"], report.total["cost"]), ("acme", 1.5))
        self.assertIn("group_by", str(self.server.calls[-1]))
        budget = {
            "tenant": "acme",
            "amount": 10,
            "period": "day",
            "spent": 8.5,
            "state": "warned",
            "renews_at": "2026-12-01T00:00:00.000Z",
        }
        self.server.on_json("PUT", "/v1/tenants/acme/budget", 200, budget)
        self.assertEqual(self.client.usage.set_budget(10, tenant="acme", period="day").state, "warned")
        self.server.on_json("GET", "/v1/budgets", 200, {"items": [budget]})
        self.assertEqual([each.tenant for each in self.client.usage.budgets()], ["acme"])
        self.server.on(
            "DELETE", "/v1/account/budget", lambda call: (call.send_response(204), call.end_headers())[1]
        )
        self.client.usage.remove_budget()

    def test_a_failed_and_a_broken_off_build_are_errors(self) -> None:
        for line, expected in (
            ({"type": "error", "code": "no_space", "message": "full"}, torpor.NoSpaceError),
            (None, torpor.ConnectionError),
        ):

            def build(call: Call) -> None:
                call.begin_chunked()
                if line is not None:
                    call.line(line)
                call.end_chunked()

            self.server.on("POST", "/v1/templates/base/build", build)
            with self.assertRaises(expected):
                self.client.templates.build("base")

    def test_webhooks_are_made_shown_changed_and_removed(self) -> None:
        wire = {
            "id": "wh_1",
            "url": "https://example.com/hook",
            "types": ["sandbox.destroyed"],
            "description": "",
            "tenant": None,
            "enabled": True,
            "disabled_because": None,
            "created_at": "2026-11-29T16:00:00Z",
            "pending": 2,
            "failed": 1,
            "last_delivered_at": None,
            "last_error": "the answer was 500",
        }
        self.server.on_json("POST", "/v1/webhooks", 201, {**wire, "secret": "whsec_eA=="}).on_json(
            "GET", "/v1/webhooks", 200, {"items": [wire]}
        ).on_json("GET", "/v1/webhooks/wh_1", 200, wire).on_json(
            "PATCH", "/v1/webhooks/wh_1", 200, {**wire, "enabled": False}
        )
        made = self.client.webhooks.create(wire["url"], types=["sandbox.destroyed"])
        self.assertEqual((made.secret, made.pending, made.failed), ("whsec_eA==", 2, 1))
        self.assertNotIn("whsec", repr(made))
        self.assertEqual(
            json.loads(self.server.calls_to("POST", "/webhooks")[-1]["body"]),
            {"url": wire["url"], "types": ["sandbox.destroyed"]},
        )
        self.assertEqual(self.client.webhooks.list(), [self.client.webhooks.get("wh_1")])
        self.assertIs(self.client.webhooks.update("wh_1", types=[], enabled=False).enabled, False)
        self.assertEqual(
            json.loads(self.server.calls_to("PATCH", "/webhooks/wh_1")[-1]["body"]),
            {"types": [], "enabled": False},
        )
        self.server.on(
            "DELETE", "/v1/webhooks/wh_1", lambda call: (call.send_response(204), call.end_headers())[1]
        )
        self.assertIs(self.client.webhooks.remove("wh_1"), True)
        self.assertIs(self.client.webhooks.remove("wh_2"), False)

    def test_accounts_are_made_shown_listed_and_limited(self) -> None:
        wire = {
            "id": "acme",
            "created_at": "2026-11-29T16:00:00Z",
            "limits": {"max_lifetime_seconds": 60, "sandboxes_awake": None},
            "tenant_limits": {"sandboxes_awake": 2},
            "usage": {"sandboxes": 3, "sandboxes_awake": 1},
        }
        self.server.on_json("POST", "/v1/accounts", 201, wire).on_json(
            "PATCH", "/v1/accounts/acme", 200, wire
        ).on_json("GET", "/v1/accounts", 200, {"items": [wire], "next_cursor": None}).on_json(
            "GET", "/v1/account", 200, wire
        ).on_json("GET", "/v1/accounts/acme", 200, wire)
        made = self.client.accounts.create("acme", limits={"max_lifetime_seconds": 60})
        self.assertEqual((made.id, made.limits["max_lifetime_seconds"], made.usage["sandboxes"]), ("acme", 60, 3))
        self.assertEqual(
            self.client.accounts.set_limits("acme", max_lifetime_seconds=None, tenant_limits={"cpu": 1}), made
        )
        self.assertEqual(
            json.loads(self.server.calls_to("PATCH", "/accounts/acme")[-1]["body"]),
            {"limits": {"max_lifetime_seconds": None}, "tenant_limits": {"cpu": 1}},
        )
        self.assertEqual(list(self.client.accounts.list()), [made])
        self.server.on_json(
            "GET", "/v1/tenants/t", 200, {"tenant": "t", "limits": {"cpu": 2}, "usage": {"cpu": 1}}
        )
        tenant = self.client.accounts.tenant("t")
        self.assertEqual((tenant.tenant, tenant.limits, tenant.usage), ("t", {"cpu": 2}, {"cpu": 1}))
        self.assertEqual([self.client.accounts.own(), self.client.accounts.get("acme")], [made, made])

    def test_a_key_is_shown_once_and_never_by_repr(self) -> None:
        wire = {
            "id": "key_1",
            "name": "ci",
            "prefix": "tp_ab",
            "tenant": "t",
            "scopes": ["sandbox:read"],
            "created_at": "2026-11-29T16:00:00Z",
            "expires_at": None,
            "last_used_at": None,
            "revoked_at": None,
        }
        self.server.on_json("POST", "/v1/keys", 201, {**wire, "key": "tp_secret"}).on_json(
            "GET", "/v1/keys", 200, {"items": [wire]}
        )
        key = self.client.keys.create("ci", tenant="t", scopes=["sandbox:read"], expires_in_seconds=60)
        self.assertEqual(key.key, "tp_secret")
        self.assertNotIn("secret", repr(key))
        self.assertEqual(
            json.loads(self.server.calls_to("POST", "/keys")[-1]["body"]),
            {"name": "ci", "tenant": "t", "scopes": ["sandbox:read"], "expires_in_seconds": 60},
        )
        self.assertIsNone(self.client.keys.list()[0].key)
        self.client.keys.list(account="acme")
        self.assertEqual(
            [call["query"].get("account") for call in self.server.calls if call["method"] == "GET"],
            [None, "acme"],
        )
        self.server.on_json("DELETE", "/v1/keys/key_1", 200, wire)
        self.assertIs(self.client.keys.revoke("key_1"), True)
        self.assertIs(self.client.keys.revoke("key_2"), False)
