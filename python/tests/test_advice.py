"""Advice on the shape of a sandbox."""

from __future__ import annotations

import json
import unittest
from typing import Any, Dict

from torpor import Sandbox

from .fake_server import FakeServer, sandbox_wire

WALKED: Dict[str, Any] = {
    "shape": "stateful",
    "decided_by": "warmth",
    "reason": "somebody waits",
    "steps": [
        {
            "question": "warmth",
            "asks": "Is warmth the experience?",
            "answer": "yes",
            "points_to": "stateful",
            "decides": True,
            "reason": "somebody waits",
        }
    ],
    "lost": [{"kind": "connections", "when": "each sleep"}],
    "notes": ["name the tenant"],
}


class AdviceCase(unittest.TestCase):
    def setUp(self) -> None:
        self.server = FakeServer()
        self.addCleanup(self.server.close)

    def sent(self, suffix: str) -> Dict[str, Any]:
        sent: Dict[str, Any] = json.loads(self.server.calls_to("POST", suffix)[-1]["body"])
        return sent

    def test_advise_sends_what_is_known_and_gives_what_is_told(self) -> None:
        told = {
            **WALKED,
            "settings": {"persistent": True},
            "costs": [{"policy": "awake", "cost_per_day": 1.5}],
            "break_even": {"sleep_beats_awake_seconds": 0.9},
            "facts": {"cpu": 1},
        }
        self.server.on_json("POST", "/v1/advise", 200, told)
        advice = Sandbox.advise(survives=("memory",), idle_gap_seconds=60, client=self.server.client())
        self.assertEqual(self.sent("/advise"), {"survives": ["memory"], "idle_gap_seconds": 60})
        self.assertEqual((advice.shape, advice.decided_by), ("stateful", "warmth"))
        self.assertTrue(advice.steps[0].decides)
        self.assertEqual(advice.costs[0]["cost_per_day"], 1.5)
        Sandbox.advise(survives=False, client=self.server.client())
        self.assertEqual(self.sent("/advise"), {"survives": False})

    def test_a_create_that_leaves_it_to_the_advice_tells_what_was_taken(self) -> None:
        advice = {**WALKED, "applied": {"idle_timeout_seconds": 60}, "set_by_caller": ["on_idle"]}
        self.server.on_json("POST", "/v1/sandboxes", 201, {**sandbox_wire(), "advice": advice})
        client = self.server.client()
        made = Sandbox.create(lifecycle="auto", workload={"untrusted": False}, accept_risk=True, client=client)
        expected = {"lifecycle": "auto", "workload": {"untrusted": False}, "accept_risk": True}
        self.assertEqual(self.sent("/sandboxes"), expected)
        assert made.advice is not None
        self.assertEqual(made.advice.applied, {"idle_timeout_seconds": 60})
        self.assertEqual(made.advice.set_by_caller, ["on_idle"])
