"""Stateful sandboxes of a real server."""

from __future__ import annotations

import threading
import uuid
from typing import Any, List

import torpor
from torpor import Sandbox

from .real_server import RealServerCase


class Stateful(RealServerCase):
    def persistent(self, **options: Any) -> Sandbox:
        return self.create(
            persistent=True, ttl_seconds=torpor.UNSET, metadata={"tenant_id": "acme"}, **options
        )

    def test_memory_and_files_survive_a_sleep(self) -> None:
        self.need("/v1/sandboxes/{id}/hibernate", "/v1/sandboxes/{id}/wake")
        with self.persistent() as sandbox:
            self.assertEqual(
                (sandbox.info.persistent, sandbox.info.tenant, sandbox.info.expires_at), (True, "acme", None)
            )
            sandbox.filesystem.write("/workspace/note", "kept")
            command = sandbox.start("exec sleep 600")
        generation = sandbox.info.generation
        asleep = sandbox.hibernate()
        self.assertEqual(asleep.state, "hibernated")
        assert asleep.image is not None
        self.assertGreater(asleep.image.size_bytes, 0)
        found = Sandbox.get(sandbox.id, client=self.client)
        self.assertEqual(found.info.state, "hibernated")
        self.assertEqual(found.filesystem.read("/workspace/note"), "kept")
        self.assertEqual(found.refresh().state, "running")
        self.assertGreater(found.info.generation, generation)
        self.assertIn(command.pid, [process.pid for process in found.processes()])
        self.assertEqual(found.wake().state, "running")

    def test_pauses_and_resumes(self) -> None:
        self.need("/v1/sandboxes/{id}/pause", "/v1/sandboxes/{id}/resume")
        sandbox = self.create()
        self.assertEqual(sandbox.pause().state, "paused")
        self.assertEqual(sandbox.resume().state, "running")
        self.assertEqual(sandbox.exec("echo back").stdout, "back\n")

    def test_one_sandbox_a_session_and_tenant(self) -> None:
        self.need("/v1/sessions")
        key = uuid.uuid4().hex
        found: List[Sandbox] = []

        def ask(tenant: str) -> None:
            found.append(Sandbox.session(tenant=tenant, key=key, template="base", client=self.client))

        threads = [
            threading.Thread(target=ask, args=(tenant,)) for tenant in ("acme", "other") for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(180)
        for sandbox in {each.id: each for each in found}.values():
            self.addCleanup(sandbox.destroy)
        self.assertEqual(len(found), 16)
        self.assertEqual(len({(each.info.tenant, each.id) for each in found}), 2)
        self.assertEqual(sum(bool(each.is_new) for each in found), 2)

    def test_a_snapshot_becomes_another_sandbox(self) -> None:
        self.need("/v1/sandboxes/{id}/snapshots", "/v1/snapshots/{id}")
        sandbox = self.create(tenant="acme")
        sandbox.filesystem.write("/workspace/note", "kept")
        snapshot = sandbox.snapshot("before")
        self.addCleanup(self.client.snapshots.remove, snapshot.id)
        self.assertIn(snapshot.id, [each.id for each in self.client.snapshots.list(sandbox_id=sandbox.id)])
        copy = Sandbox.create(from_snapshot=snapshot.id, tenant="acme", client=self.client)
        self.addCleanup(copy.destroy)
        self.assertEqual(copy.filesystem.read("/workspace/note"), "kept")
        self.assertNotEqual(copy.id, sandbox.id)
        self.assertIs(self.client.snapshots.remove(snapshot.id), True)
        self.assertIs(self.client.snapshots.remove(snapshot.id), False)

    def test_forks_are_copies_with_lives_of_their_own(self) -> None:
        self.need("/v1/sandboxes/{id}/fork")
        parent = self.create()
        parent.filesystem.write("/workspace/note", "from the parent")
        fork = parent.fork(2)
        for child in fork:
            self.addCleanup(child.destroy)
        self.assertEqual((len(fork.sandboxes), fork.errors), (2, []))
        self.assertEqual({child.filesystem.read("/workspace/note") for child in fork}, {"from the parent"})
        uuids = {each.exec("head -c 16 /dev/urandom | od -An -tx1", check=True).stdout for each in (parent, *fork)}
        self.assertEqual(len(uuids), 3)

    def test_variables_of_code_survive_a_sleep(self) -> None:
        self.need("/v1/sandboxes/{id}/code", "/v1/sandboxes/{id}/hibernate")
        sandbox = self.persistent(template="code-interpreter")
        self.assertEqual(sandbox.run_code("x = 41\nprint('set')").stdout, "set\n")
        sandbox.hibernate()
        self.assertEqual(sandbox.run_code("x + 1").text, "42")
        error = sandbox.run_code("1 / 0").error
        assert error is not None
        self.assertEqual(error.name, "ZeroDivisionError")

    def test_clocks_promotion_and_the_inventory(self) -> None:
        self.need("/v1/sandboxes/{id}/promote", "/v1/sandboxes/{id}/state")
        sandbox = self.create()
        promoted = sandbox.promote(
            "the user came back", tenant="acme" if sandbox.info.tenant == "acme" else None
        )
        self.assertTrue(promoted.persistent)
        self.assertIsNone(sandbox.set_ttl(None).expires_at)
        self.assertIsNone(sandbox.set_lifecycle(idle_timeout_seconds=None).idle_at)
        self.assertIn("ttl", sandbox.lifecycle()["clocks"])
        sandbox.filesystem.write("/workspace/new", "x")
        state = sandbox.state()
        self.assertGreater(state["files"]["changed_count"], 0)
        self.assertEqual(state["forecast"]["hibernate"]["files"]["survives"], "all")
