"""Files looked at, moved, watched and archived."""

from __future__ import annotations

import io
import tarfile
import threading
import unittest
from typing import Any, List

import torpor
from torpor import Sandbox

from .fake_server import SANDBOX_ID, Call, FakeServer, file_entry_wire


class FileTree(unittest.TestCase):
    def setUp(self) -> None:
        self.server = FakeServer().with_sandbox()
        self.addCleanup(self.server.close)
        self.files = Sandbox.create(client=self.server.client()).filesystem

    def last(self) -> Any:
        return self.server.calls[-1]

    def test_looks_at_makes_moves_and_removes(self) -> None:
        self.server.on_json(
            "GET",
            "/v1/sandboxes/{id}/fs/dir",
            200,
            {"entries": [file_entry_wire(), file_entry_wire(name="b", type="dir")]},
        )
        self.assertEqual([entry.name for entry in self.files.list("/workspace", depth=3)], ["a.txt", "b"])
        self.assertEqual(self.last()["query"], {"path": "/workspace", "depth": "3"})
        self.server.on_json("GET", "/v1/sandboxes/{id}/fs/stat", 200, file_entry_wire(symlink_target="/x"))
        self.assertEqual(self.files.stat("/a").symlink_target, "/x")
        self.assertTrue(self.files.exists("/a"))
        self.server.on_json("POST", "/v1/sandboxes/{id}/fs/dir", 200, file_entry_wire())
        self.files.mkdir("/a/b")
        self.server.on_json("POST", "/v1/sandboxes/{id}/fs/move", 200, file_entry_wire())
        self.files.move("/a", "/b")
        self.server.on_json("DELETE", "/v1/sandboxes/{id}/fs", 200, {"path": "/a", "removed": True})
        self.assertTrue(self.files.remove("/a"))

    def test_a_missing_file_is_not_a_missing_sandbox(self) -> None:
        for method, path, ask in (
            ("GET", "/v1/sandboxes/{id}/fs/stat", self.files.exists),
            ("DELETE", "/v1/sandboxes/{id}/fs", self.files.remove),
        ):
            self.server.on(method, path, lambda call: call.send_failure(404, "file_not_found"))
            self.assertIs(ask("/a"), False)
            self.server.on(method, path, lambda call: call.send_failure(404, "sandbox_not_found"))
            with self.assertRaises(torpor.NotFoundError):
                ask("/a")

    def test_archives_go_both_ways_as_streams(self) -> None:
        stored: List[bytes] = []

        def put(call: Call) -> None:
            stored.append(call.body())
            call.send_json(200, {"entries": 1})

        self.server.on("PUT", "/v1/sandboxes/{id}/fs/archive", put)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            info = tarfile.TarInfo("x.txt")
            info.size = 5
            tar.addfile(info, io.BytesIO(b"hello"))
        buffer.seek(0)
        self.files.upload_archive("/workspace", buffer, gzip=True)
        self.assertEqual(self.last()["query"], {"path": "/workspace", "format": "tar.gz"})
        self.assertEqual(self.last()["headers"]["content-type"], "application/gzip")
        self.server.on("GET", "/v1/sandboxes/{id}/fs/archive", lambda call: call.send(200, stored[0]))
        with self.files.download_archive("/workspace", gzip=True) as stream, tarfile.open(
            fileobj=stream, mode="r|gz"
        ) as tar:
            member = tar.next()
            assert member is not None
            content = tar.extractfile(member)
            assert content is not None
            self.assertEqual((member.name, content.read()), ("x.txt", b"hello"))

    def test_changes_come_until_the_watcher_is_closed(self) -> None:
        def watch(call: Call) -> None:
            call.begin_chunked()
            call.line({"type": "create", "name": "a"})
            call.line({"type": "keepalive"})
            call.line({"type": "write", "name": "a"})
            call.wait_for_client_to_leave()

        self.server.on("GET", "/v1/sandboxes/{id}/fs/watch", watch)
        with self.files.watch("/workspace", recursive=True) as watcher:
            changes = []
            for change in watcher:
                changes.append((change.type, change.name))
                if len(changes) == 2:
                    threading.Timer(0.1, watcher.close).start()
        self.assertEqual(changes, [("create", "a"), ("write", "a")])
        self.assertEqual(self.last()["query"], {"path": "/workspace", "recursive": "true"})

    def test_a_watch_that_ends_by_itself_is_an_error(self) -> None:
        for handler in (Call.end_chunked, Call.cut):

            def watch(call: Call) -> None:
                call.begin_chunked()
                handler(call)

            self.server.on("GET", "/v1/sandboxes/{id}/fs/watch", watch)
            with self.assertRaises(torpor.ConnectionError), self.files.watch("/workspace") as watcher:
                list(watcher)

    def test_ids_cannot_reach_another_resource(self) -> None:
        client = self.server.client()
        for bad in ("", ".", ".."):
            with self.subTest(bad), self.assertRaises(torpor.InvalidRequestError):
                Sandbox.get(bad, client=client)
        with self.assertRaises(torpor.NotFoundError):
            Sandbox.get(f"{SANDBOX_ID}/../../keys?x#y", client=client)
        self.assertEqual(self.last()["path"].count("/"), 3)
