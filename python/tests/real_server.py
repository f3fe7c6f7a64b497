"""Tests against a real server: TORPOR_TEST_URL and TORPOR_TEST_KEY say which. Each makes what it needs."""

from __future__ import annotations

import os
import re
import time
import unittest
from typing import Any, Callable, Dict

from torpor import Sandbox, Torpor
from torpor._request import Request

URL = os.environ.get("TORPOR_TEST_URL", "")
KEY = os.environ.get("TORPOR_TEST_KEY", "")


def eventually(what: str, look: Callable[[], Any], timeout_seconds: float = 20) -> Any:
    deadline = time.monotonic() + timeout_seconds
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_seconds} s for: {what}")
        time.sleep(0.05)


@unittest.skipUnless(URL and KEY, "TORPOR_TEST_URL and TORPOR_TEST_KEY name no server to test against")
class RealServerCase(unittest.TestCase):
    client: Torpor
    description: Dict[str, Any]

    @classmethod
    def setUpClass(cls) -> None:
        cls.client = Torpor(URL, KEY)
        cls.addClassCleanup(cls.client.close)
        cls.description = cls.client._transport.json(Request("GET", "/v1/openapi.json"))

    def need(self, *paths: str) -> None:
        # How a route names its parameters is the server's to choose.
        known = {re.sub(r"{\w+}", "{}", path) for path in self.description["paths"]}
        missing = [path for path in paths if re.sub(r"{\w+}", "{}", path) not in known]
        if missing:
            self.skipTest(f"the server does not have {', '.join(missing)} yet")

    def create(self, **options: Any) -> Sandbox:
        sandbox = Sandbox.create(client=self.client, **{"template": "base", "ttl_seconds": 300, **options})
        self.addCleanup(sandbox.destroy)
        return sandbox
