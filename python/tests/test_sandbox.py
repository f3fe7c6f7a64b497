"""Sandboxes: made, found, put to sleep, copied and ended."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
import traceback
import unittest
from datetime import datetime, timezone
from typing import Any, Callable, Dict

import torpor
from torpor import Sandbox

from .fake_server import SANDBOX_ID, Call, FakeServer, sandbox_wire


class SandboxCase(unittest.TestCase):
    def setUp(self) -> None:
        self.server = FakeServer().with_sandbox()
        self.addCleanup(self.server.close)
        self.client = self.server.client()

    def sent(self, method: str = "POST", suffix: str = "/sandboxes") -> Dict[str, Any]:
        sent: Dict[str, Any] = json.loads(self.server.calls_to(method, suffix)[-1]["body"])
        return sent


class Life(SandboxCase):
    def test_create_sends_what_is_given_and_nothing_else(self) -> None:
        Sandbox.create(client=self.client)
        self.assertEqual(self.sent(), {})
        Sandbox.create(
            client=self.client,
            template="base",
            ttl_seconds=60,
            persistent=True,
            tenant="acme",
            name="n",
            metadata={"tenant_id": "t"},
            env={"A": "b"},
            secrets={"TOKEN": "s"},
            cpu=0.5,
            memory_mb=256,
            disk_mb=512,
            network="none",
            idle_timeout_seconds=10,
            on_idle="pause",
            on_expire="hibernate",
            retention_seconds=3600,
            auto_wake=False,
            hibernate_memory=False,
            from_snapshot="snpx",
        )
        self.assertEqual(
            self.sent(),
            {
                "template": "base",
                "ttl_seconds": 60,
                "persistent": True,
                "tenant": "acme",
                "name": "n",
                "metadata": {"tenant_id": "t"},
                "env": {"A": "b"},
                "secrets": {"TOKEN": "s"},
                "cpu": 0.5,
                "memory_mb": 256,
                "disk_mb": 512,
                "network": "none",
                "idle_timeout_seconds": 10,
                "on_idle": "pause",
                "on_expire": "hibernate",
                "retention_seconds": 3600,
                "auto_wake": False,
                "hibernate_memory": False,
                "from_snapshot": "snpx",
            },
        )

    def test_none_is_no_limit_for_a_clock_and_left_out_elsewhere(self) -> None:
        Sandbox.create(
            client=self.client,
            ttl_seconds=None,
            idle_timeout_seconds=None,
            retention_seconds=None,
            tenant=None,
            cpu=None,
        )
        self.assertEqual(
            self.sent(), {"ttl_seconds": None, "idle_timeout_seconds": None, "retention_seconds": None}
        )

    def test_what_json_cannot_carry_is_refused_by_name(self) -> None:
        for name, options in (
            ("ttl_seconds", {"ttl_seconds": float("nan")}),
            ("cpu", {"cpu": float("inf")}),
            ("name", {"name": b"x"}),
            ("metadata", {"metadata": {"a": {1}}}),
        ):
            with self.subTest(name), self.assertRaises(torpor.InvalidRequestError) as caught:
                Sandbox.create(client=self.client, **options)  # type: ignore[arg-type]
            self.assertIn(name, str(caught.exception))
        with self.assertRaises(TypeError):
            Sandbox.create(client=self.client, ttl_secconds=5)  # type: ignore[call-arg]
        self.assertEqual(self.server.calls, [])

    def test_info_is_typed(self) -> None:
        info = Sandbox.create(client=self.client).info
        self.assertEqual(info.created_at, datetime(2026, 11, 29, 16, 0, tzinfo=timezone.utc))
        self.assertEqual(info.expires_at, datetime(2026, 11, 29, 16, 5, tzinfo=timezone.utc))
        self.assertIsNone(info.ended_at)
        assert info.attestation is not None
        self.assertTrue(info.attestation.complete)
        self.assertEqual(info.attestation.steps[0].duration_us, 120)

    def test_a_with_block_destroys_also_when_it_raises(self) -> None:
        with Sandbox.create(client=self.client) as sandbox:
            self.assertTrue(sandbox.is_new)
        self.assertEqual(sandbox.info.state, "destroyed")
        self.server.with_sandbox()
        with self.assertRaises(KeyError), Sandbox.create(client=self.client):
            raise KeyError
        self.assertEqual(len(self.server.calls_to("DELETE", SANDBOX_ID)), 2)

    def test_a_persistent_sandbox_outlives_its_with_block(self) -> None:
        self.server.with_sandbox(persistent=True)
        with Sandbox.create(client=self.client, persistent=True, metadata={"tenant_id": "t"}) as sandbox:
            pass
        self.assertEqual(self.server.calls_to("DELETE", SANDBOX_ID), [])
        self.assertTrue(sandbox.destroy())

    def test_the_block_s_own_error_is_not_hidden_by_a_failed_destroy(self) -> None:
        self.server.on(
            "DELETE", "/v1/sandboxes/{id}", lambda call: call.send_failure(500, "internal", "destroy failed")
        )
        with self.assertRaises(KeyError), Sandbox.create(client=self.client):
            raise KeyError
        with self.assertRaisesRegex(torpor.TorporError, "destroy failed"), Sandbox.create(client=self.client):
            pass

    def test_destroy_is_idempotent_and_says_whether_it_did_it(self) -> None:
        sandbox = Sandbox.create(client=self.client)
        self.assertIs(sandbox.destroy(), True)
        self.assertIs(sandbox.destroy(), False)
        self.assertEqual(len(self.server.calls_to("DELETE", SANDBOX_ID)), 1)
        for status, code in ((404, "sandbox_not_found"), (410, "sandbox_ended")):
            self.server.with_sandbox()
            sandbox = Sandbox.create(client=self.client)
            self.server.on("DELETE", "/v1/sandboxes/{id}", lambda call: call.send_failure(status, code))
            self.assertIs(sandbox.destroy(), False)
        self.server.with_sandbox()
        sandbox = Sandbox.create(client=self.client)
        self.server.on_json(
            "DELETE", "/v1/sandboxes/{id}", 200, sandbox_wire(state="destroyed", reason="ttl_expired")
        )
        self.assertIs(sandbox.destroy(), False)

    def test_a_create_that_runs_out_of_time_is_undone(self) -> None:
        slow = threading.Event()
        undone = threading.Event()

        def create(call: Call) -> None:
            call.body()
            if not slow.is_set():
                slow.set()
                time.sleep(0.6)
            call.send_json(201, sandbox_wire())

        def delete(call: Call) -> None:
            undone.set()
            call.send_json(200, sandbox_wire(state="destroyed", reason="user"))

        self.server.on("POST", "/v1/sandboxes", create).on("DELETE", "/v1/sandboxes/{id}", delete)
        with self.assertRaises(torpor.TimeoutError):
            Sandbox.create(client=self.client, call_timeout_seconds=0.2)
        self.assertTrue(undone.wait(10))
        first, second = (
            call["headers"]["idempotency-key"] for call in self.server.calls_to("POST", "/sandboxes")
        )
        self.assertEqual(first, second)
        slow.clear()
        undone.clear()
        with self.assertRaises(torpor.TimeoutError):
            Sandbox.create(client=self.client, call_timeout_seconds=0.2, idempotency_key="mine")
        self.assertFalse(undone.wait(1))

    def test_list_walks_over_all_pages_with_its_filters(self) -> None:
        pages = {"": ([1, 2], "c1"), "c1": ([3], "c2"), "c2": ([], None)}

        def send(call: Call) -> None:
            numbers, cursor = pages[call.query.get("cursor", "")]
            call.send_json(
                200, {"items": [sandbox_wire(name=str(number)) for number in numbers], "next_cursor": cursor}
            )

        self.server.on("GET", "/v1/sandboxes", send)
        listed = Sandbox.list(client=self.client, state="running", metadata={"a&b": "c d"}, page_size=2)
        self.assertEqual([sandbox.info.name for sandbox in listed], ["1", "2", "3"])
        self.assertEqual([sandbox.info.name for sandbox in listed], ["1", "2", "3"])
        self.assertEqual([len(page.items) for page in listed.pages()], [2, 1, 0])
        self.assertEqual(listed.page("c1").next_cursor, "c2")
        self.assertEqual(
            self.server.calls[0]["query"], {"state": "running", "metadata.a&b": "c d", "limit": "2"}
        )

    def test_a_list_that_would_never_end_is_an_error(self) -> None:
        self.server.on_json("GET", "/v1/sandboxes", 200, {"items": [], "next_cursor": "same"})
        with self.assertRaises(torpor.TorporError):
            list(Sandbox.list(client=self.client))
        self.server.on_json("GET", "/v1/sandboxes", 200, {"items": "no list"})
        with self.assertRaises(torpor.TorporError):
            list(Sandbox.list(client=self.client))

    def test_set_ttl_moves_the_deadline(self) -> None:
        self.server.on_json(
            "PATCH", "/v1/sandboxes/{id}/lifecycle", 200, sandbox_wire(expires_at="2026-11-29T17:00:00+01:00")
        )
        sandbox = Sandbox.create(client=self.client)
        self.assertEqual(sandbox.set_ttl(60).expires_at, datetime(2026, 11, 29, 16, 0, tzinfo=timezone.utc))
        self.assertEqual(self.sent("PATCH", "/lifecycle"), {"ttl_seconds": 60})
        sandbox.set_ttl(None)
        self.assertEqual(self.sent("PATCH", "/lifecycle"), {"ttl_seconds": None})
        sandbox.set_lifecycle(idle_timeout_seconds=None, on_idle="none", auto_wake=False)
        self.assertEqual(
            self.sent("PATCH", "/lifecycle"),
            {"idle_timeout_seconds": None, "on_idle": "none", "auto_wake": False},
        )

    def test_set_network_sends_the_whole_policy(self) -> None:
        self.server.on_json("PATCH", "/v1/sandboxes/{id}/network", 200, sandbox_wire(network="none"))
        sandbox = Sandbox.create(client=self.client, network={"deny": ("203.0.113.9",)})
        self.assertEqual(self.sent()["network"], {"deny": ["203.0.113.9"]})
        sandbox.set_network("none")
        self.assertEqual(self.sent("PATCH", "/network"), {"network": "none"})
        sandbox.set_network({"egress": "none", "allow": ["*.example.com"], "deny": []})
        self.assertEqual(
            self.sent("PATCH", "/network"),
            {"network": {"egress": "none", "allow": ["*.example.com"], "deny": []}},
        )

    def test_work_in_an_ended_sandbox_says_why_it_ended(self) -> None:
        sandbox = Sandbox.create(client=self.client)
        self.server.on(
            "POST",
            "/v1/sandboxes/{id}/exec",
            lambda call: call.send_failure(410, "sandbox_ended", details={"reason": "oom"}),
        )
        with self.assertRaises(torpor.SandboxEndedError) as caught:
            sandbox.exec("x")
        self.assertEqual(caught.exception.reason, "oom")

    def test_logs_are_text(self) -> None:
        self.server.on("GET", "/v1/sandboxes/{id}/logs", lambda call: call.send(200, b"boot\xff\n"))
        self.assertEqual(Sandbox.create(client=self.client).logs(), "boot\ufffd\n")


class Stateful(SandboxCase):
    def setUp(self) -> None:
        super().setUp()
        self.sandbox = Sandbox.create(client=self.client)

    def test_sleeps_and_wakes(self) -> None:
        for act, state in (
            ("pause", "paused"),
            ("resume", "running"),
            ("hibernate", "hibernated"),
            ("wake", "running"),
        ):
            image = {"size_bytes": 9, "created_at": "2026-11-29T16:00:00Z"} if state == "hibernated" else None
            self.server.on_json(
                "POST",
                f"/v1/sandboxes/{{id}}/{act}",
                200,
                sandbox_wire(state=state, image=image, generation=2),
            )
            info = getattr(self.sandbox, act)()
            self.assertEqual((info.state, self.sandbox.info.state, info.generation), (state, state, 2))
            self.assertEqual(info.image is not None, state == "hibernated")

    def test_sleeps_without_its_memory(self) -> None:
        image = {"size_bytes": 9, "created_at": "2026-11-29T16:00:00Z", "memory": False}
        self.server.on_json(
            "POST", "/v1/sandboxes/{id}/hibernate", 200, sandbox_wire(state="hibernated", image=image)
        )
        info = self.sandbox.hibernate(memory=False)
        self.assertEqual(self.sent("POST", "/hibernate"), {"memory": False})
        self.assertIs(info.image is not None and info.image.memory, False)

    def test_a_session_says_whether_it_is_new(self) -> None:
        for status, created in ((201, True), (200, False)):
            self.server.on_json(
                "POST", "/v1/sessions", status, {"sandbox": sandbox_wire(persistent=True), "created": created}
            )
            session = Sandbox.session(tenant="acme", key="chat-42", template="base", client=self.client)
            self.assertIs(session.is_new, created)
        self.assertEqual(
            self.sent("POST", "/sessions"), {"tenant": "acme", "key": "chat-42", "template": "base"}
        )
        self.server.on_json("POST", "/v1/sessions", 200, {"created": True})
        with self.assertRaises(torpor.TorporError):
            Sandbox.session(tenant="acme", key="chat-42", client=self.client)

    def test_forked_children_succeed_and_fail_on_their_own(self) -> None:
        other = "sother2345678901234567xxxx"
        children = [
            {"sandbox": sandbox_wire(id=other)},
            {"error": {"code": "capacity_exhausted", "message": "full"}},
        ]
        self.server.on_json("POST", "/v1/sandboxes/{id}/fork", 201, {"children": children})
        fork = self.sandbox.fork(2, ttl_seconds=60, metadata={"a": "b"})
        self.assertEqual([child.id for child in fork], [other])
        self.assertIsInstance(fork.errors[0], torpor.CapacityError)
        self.assertEqual(len(fork.children), 2)
        self.assertEqual(self.sent("POST", "/fork"), {"count": 2, "ttl_seconds": 60, "metadata": {"a": "b"}})
        with self.assertRaises(torpor.InvalidRequestError):
            self.sandbox.fork(0)

    def test_explore_keeps_the_best_attempt_and_destroys_the_rest(self) -> None:
        ids = [f"sfork{n}23456789012345xxxx" for n in range(3)]
        children = [{"sandbox": sandbox_wire(id=id)} for id in ids]
        children.append({"error": {"code": "capacity_exhausted", "message": "full"}})
        self.server.on_json("POST", "/v1/sandboxes/{id}/fork", 201, {"children": children})
        self.server.on_json("DELETE", "/v1/sandboxes/*", 200, sandbox_wire(state="destroyed"))

        def attempt(fork: Sandbox, candidate: str) -> float:
            if candidate == "fails":
                raise KeyError(candidate)
            return float(len(candidate))

        found = self.sandbox.explore(["a", "fails", "bbb", "never tried"], attempt, ttl_seconds=60)
        self.assertEqual((found.winner.id, found.candidate, found.index, found.score), (ids[2], "bbb", 2, 3.0))
        self.assertEqual(found.scores, [1.0, None, 3.0, None])
        self.assertEqual({type(failure) for failure in found.failures}, {KeyError, torpor.CapacityError})
        destroyed = {call["path"].split("/")[-1] for call in self.server.calls_to("DELETE", "")}
        self.assertEqual(destroyed, {ids[0], ids[1]})
        self.assertEqual(self.sent("POST", "/fork"), {"count": 4, "ttl_seconds": 60})
        with self.assertRaises(torpor.TorporError) as none:
            self.sandbox.explore(["fails"], attempt)
        self.assertEqual(none.exception.code, "no_attempt_scored")
        with self.assertRaises(torpor.TorporError):
            self.sandbox.explore([], attempt)

    def test_an_interrupted_explore_begins_no_more_attempts_and_keeps_no_fork(self) -> None:
        ids = [f"sfork{n}23456789012345xxxx" for n in range(4)]
        children = [{"sandbox": sandbox_wire(id=id)} for id in ids]
        self.server.on_json("POST", "/v1/sandboxes/{id}/fork", 201, {"children": children})
        self.server.on_json("DELETE", "/v1/sandboxes/*", 200, sandbox_wire(state="destroyed"))
        begun: "list[int]" = []
        workers: "list[threading.Thread]" = []
        caller = threading.get_ident()

        def waits_for_a_result() -> bool:
            calls = traceback.extract_stack(sys._current_frames()[caller])
            return any(call.name == "result" for call in calls)

        def eventually(holds: Callable[[], bool]) -> None:
            deadline = time.monotonic() + 10
            while not holds() and time.monotonic() < deadline:
                time.sleep(0.01)

        def attempt(fork: Sandbox, candidate: int) -> float:
            begun.append(candidate)
            workers.append(threading.current_thread())
            eventually(waits_for_a_result)  # then all are queued
            signal.pthread_kill(caller, signal.SIGINT)
            eventually(lambda: len(self.server.calls_to("DELETE", "")) > 0)
            return 0.0

        with self.assertRaises(KeyboardInterrupt):
            self.sandbox.explore([0, 1, 2, 3], attempt, concurrency=1)
        for worker in workers:
            worker.join(10)
        destroyed = {call["path"].split("/")[-1] for call in self.server.calls_to("DELETE", "")}
        self.assertEqual((begun, destroyed), ([0], set(ids)))

    def test_snapshots_are_taken_listed_and_removed(self) -> None:
        wire = {
            "id": "snpx",
            "name": "n",
            "sandbox_id": SANDBOX_ID,
            "tenant": "t",
            "template": "base",
            "size_bytes": 5,
            "generation": 1,
            "created_at": "2026-11-29T16:00:00Z",
            "retention_seconds": None,
        }
        self.server.on_json("POST", "/v1/sandboxes/{id}/snapshots", 201, wire)
        self.assertEqual(self.sandbox.snapshot("n").id, "snpx")
        self.server.on_json("GET", "/v1/snapshots", 200, {"items": [wire], "next_cursor": None})
        self.assertEqual([each.size_bytes for each in self.client.snapshots.list(sandbox_id=SANDBOX_ID)], [5])
        self.server.on_json("GET", "/v1/snapshots/snpx", 200, wire).on_json(
            "DELETE", "/v1/snapshots/snpx", 200, {}
        )
        self.assertEqual(self.client.snapshots.get("snpx").name, "n")
        self.assertIs(self.client.snapshots.remove("snpx"), True)
        self.assertIs(self.client.snapshots.remove("snpy"), False)

    def test_promote_state_and_lifecycle(self) -> None:
        self.server.on_json(
            "POST", "/v1/sandboxes/{id}/promote", 200, sandbox_wire(persistent=True, tenant="t")
        )
        self.assertTrue(self.sandbox.promote("the user came back", tenant="t").persistent)
        self.assertEqual(
            self.sent("POST", "/promote"), {"reason": "the user came back", "tenant": "t", "persistent": True}
        )
        self.server.on_json("GET", "/v1/sandboxes/{id}/state", 200, {"files": {"changed_count": 3}})
        self.assertEqual(self.sandbox.state()["files"]["changed_count"], 3)
        self.server.on_json("GET", "/v1/sandboxes/{id}/lifecycle", 200, {"clocks": {"ttl": {"seconds": 5}}})
        self.assertEqual(self.sandbox.lifecycle()["clocks"]["ttl"]["seconds"], 5)
