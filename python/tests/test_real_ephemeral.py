"""Ephemeral sandboxes of a real server."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import tempfile
import threading
import uuid
from typing import Any, Dict, Iterator, List

import torpor
from torpor import Sandbox, Torpor

from .real_server import URL, RealServerCase, eventually

MIB = 1024 * 1024


class Ephemeral(RealServerCase):
    sandbox: Sandbox

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.sandbox = Sandbox.create(
            template="base",
            ttl_seconds=600,
            env={"GREETING": "hi"},
            metadata={"from": "python"},
            client=cls.client,
        )
        cls.addClassCleanup(cls.sandbox.destroy)

    def test_a_block_creates_runs_and_leaves_nothing(self) -> None:
        with Sandbox.create(template="base", ttl_seconds=300, client=self.client) as sbx:
            sbx.filesystem.write("/workspace/task.py", "print(6 * 7)")
            result = sbx.exec("python3 /workspace/task.py", timeout_seconds=60)
            self.assertEqual((result.stdout, result.exit_code, result.outcome), ("42\n", 0, "exited"))
            assert sbx.info.attestation is not None
            self.assertTrue(sbx.info.attestation.complete)
        ended = Sandbox.get(sbx.id, client=self.client)
        self.assertEqual((ended.info.state, ended.info.reason), ("destroyed", "user"))
        self.assertIs(ended.destroy(), False)
        with self.assertRaises(torpor.SandboxEndedError) as caught:
            ended.exec("true")
        self.assertEqual(caught.exception.reason, "user")

    def test_finds_it_by_id_label_and_state(self) -> None:
        self.assertEqual(Sandbox.get(self.sandbox.id, client=self.client).info.metadata, {"from": "python"})
        found = [
            each.id
            for each in Sandbox.list(
                metadata={"from": "python"}, state=["running"], page_size=1, client=self.client
            )
        ]
        self.assertEqual(found, [self.sandbox.id])
        with self.assertRaises(torpor.NotFoundError) as caught:
            Sandbox.get("s" + "a" * 25, client=self.client)
        self.assertEqual(caught.exception.code, "sandbox_not_found")

    def test_bad_arguments_are_refused_by_name(self) -> None:
        for name, options in (
            ("ttl_seconds", {"ttl_seconds": 0}),
            ("template", {"template": "no such"}),
            ("cpu", {"cpu": -1}),
        ):
            with self.subTest(name), self.assertRaises(torpor.InvalidRequestError) as caught:
                self.create(**options)
            self.assertIn(name, [issue.path for issue in caught.exception.issues])
        with self.assertRaises(torpor.AuthenticationError):
            Sandbox.get(self.sandbox.id, url=URL, api_key="tp_wrong")

    def test_exec_keeps_streams_apart_and_bytes_exact(self) -> None:
        result = self.sandbox.exec(
            'echo "$GREETING $A"; echo err >&2; cat; pwd; exit 7', env={"A": "b"}, cwd="/tmp", stdin="in\n"
        )
        self.assertEqual((result.stdout, result.stderr, result.exit_code), ("hi b\nin\n/tmp\n", "err\n", 7))
        raw = self.sandbox.exec(
            ["python3", "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)))"], binary=True
        )
        self.assertEqual(raw.stdout, bytes(range(256)))
        with self.assertRaises(torpor.CommandError):
            self.sandbox.exec("exit 3", check=True)

    def test_exec_tells_how_it_ended(self) -> None:
        late = self.sandbox.exec("echo early; sleep 60", timeout_seconds=0.5)
        self.assertEqual((late.outcome, late.stdout), ("timed_out", "early\n"))
        killed = self.sandbox.exec("kill -SEGV $$")
        self.assertEqual((killed.outcome, killed.signal, killed.exit_code), ("signalled", "SIGSEGV", None))
        much = self.sandbox.exec("head -c 100000 /dev/zero", max_output_bytes=1000, binary=True)
        self.assertEqual((len(much.stdout), much.truncated, much.stdout_bytes), (1000, True, 100_000))

    def test_events_and_callbacks_get_all_output_while_the_result_keeps_its_beginning(self) -> None:
        made = self.sandbox.exec("head -c 50000000 /dev/urandom > /tmp/big; sha256sum < /tmp/big", check=True)
        expected = made.stdout[:64]
        streamed, called = hashlib.sha256(), hashlib.sha256()
        with self.sandbox.exec_stream("cat /tmp/big", binary=True) as stream:
            for event in stream:
                if isinstance(event, torpor.ExecOutput):
                    streamed.update(event.data)
        result = self.sandbox.exec(
            "cat /tmp/big >&2; rm /tmp/big", binary=True, max_output_bytes=1000, on_stderr=called.update
        )
        self.assertEqual([streamed.hexdigest(), called.hexdigest()], [expected, expected])
        self.assertEqual((len(result.stderr), result.truncated, result.stderr_bytes), (1000, True, 50_000_000))

    def test_exec_streams_and_a_failing_callback_kills_the_command(self) -> None:
        pieces: List[str] = []
        result = self.sandbox.exec(
            "for i in 1 2 3; do echo $i; sleep 0.1; done; echo é >&2",
            on_stdout=pieces.append,
            on_stderr=pieces.append,
        )
        self.assertEqual(
            ("".join(pieces), result.stdout, result.stderr), ("1\n2\n3\né\n", "1\n2\n3\n", "é\n")
        )

        def fail(_text: str) -> None:
            raise KeyError("from the callback")

        with self.assertRaises(KeyError):
            self.sandbox.exec("echo begun; exec sleep 4321", on_stdout=fail)
        eventually(
            "the command to be gone", lambda: self.sandbox.exec(["pgrep", "-f", "sleep 4321"]).exit_code == 1
        )

    def test_the_same_idempotency_key_runs_a_command_once(self) -> None:
        key = uuid.uuid4().hex
        for _ in range(2):
            self.assertEqual(
                self.sandbox.exec("echo x >> ~/once; echo done", idempotency_key=key).stdout, "done\n"
            )
        self.assertEqual(self.sandbox.filesystem.read("~/once"), "x\n")

    def test_background_commands_are_listed_followed_and_killed(self) -> None:
        command = self.sandbox.start("echo begun; exec sleep 600")
        self.assertIn(command.exec_id, [process.exec_id for process in self.sandbox.processes()])
        with command.attach() as stream:
            self.assertIn("begun\n", [getattr(event, "data", None) for event in _until_output(stream)])
        self.assertTrue(command.kill())
        self.assertEqual(command.wait().signal, "SIGKILL")
        self.assertFalse(self.sandbox.kill("no-such-command"))

    def test_files_go_up_and_down_byte_for_byte(self) -> None:
        files = self.sandbox.filesystem
        data = os.urandom(5 * MIB + 3)
        path = "/workspace/dir with space/ü?&#%.bin"
        entry = files.write(path, io.BytesIO(data), mode=0o755)
        self.assertEqual((entry.size_bytes, entry.mode, entry.owner), (len(data), 0o755, "user"))
        self.assertEqual(files.read_bytes(path), data)
        self.assertEqual(files.read_bytes(path, offset=7, length=10), data[7:17])
        digest = self.sandbox.exec(["sha256sum", path], check=True).stdout.split()[0].lstrip("\\")
        self.assertEqual(digest, hashlib.sha256(data).hexdigest())
        files.write(
            "/workspace/streamed", (data[start : start + 1000] for start in range(0, len(data), 1000))
        )
        with tempfile.TemporaryDirectory() as folder:
            local = os.path.join(folder, "local")
            self.assertEqual(files.download("/workspace/streamed", local), len(data))
            files.upload(local, "/workspace/again")
        self.assertEqual(files.read_bytes("/workspace/again"), data)

    def test_files_are_listed_moved_removed_and_missed(self) -> None:
        files = self.sandbox.filesystem
        files.mkdir("/workspace/a/b")
        files.write("/workspace/a/b/c.txt", "x")
        self.assertEqual([entry.name for entry in files.list("/workspace/a", depth=2)], ["b", "c.txt"])
        files.move("/workspace/a/b/c.txt", "/workspace/a/d.txt")
        self.assertEqual(
            (files.exists("/workspace/a/b/c.txt"), files.stat("/workspace/a/d.txt").type), (False, "file")
        )
        self.assertIs(files.remove("/workspace/a"), True)
        self.assertIs(files.remove("/workspace/a"), False)
        for read in (
            lambda: files.read("/nowhere"),
            lambda: files.list("/nowhere"),
            lambda: files.stat("/nowhere"),
        ):
            with self.assertRaises(torpor.NotFoundError) as caught:
                read()
            self.assertEqual(caught.exception.code, "file_not_found")
        with self.assertRaises(torpor.InvalidRequestError):
            files.read("relative/../path")

    def test_archives_go_both_ways(self) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            info = tarfile.TarInfo("inside/x.txt")
            info.size = 5
            tar.addfile(info, io.BytesIO(b"hello"))
        buffer.seek(0)
        self.sandbox.filesystem.upload_archive("/workspace/unpacked", buffer, gzip=True)
        self.assertEqual(self.sandbox.filesystem.read("/workspace/unpacked/inside/x.txt"), "hello")
        with self.sandbox.filesystem.download_archive("/workspace/unpacked") as stream, tarfile.open(
            fileobj=stream, mode="r|"
        ) as tar:
            self.assertTrue(any(name.endswith("inside/x.txt") for name in tar.getnames()))

    def test_changes_are_watched(self) -> None:
        self.sandbox.filesystem.mkdir("/workspace/watched")
        with self.sandbox.filesystem.watch("/workspace/watched") as watcher:
            self.sandbox.filesystem.write("/workspace/watched/new", "x")
            change = next(change for change in watcher if change.name == "new")
            self.assertIn(change.type, ("create", "write", "rename"))

    def test_a_full_disk_is_told_and_passes(self) -> None:
        sandbox = self.create(disk_mb=64)
        with self.assertRaises(torpor.NoSpaceError):
            sandbox.filesystem.write("/workspace/big", (b"x" * MIB for _ in range(200)))
        self.assertFalse(sandbox.filesystem.exists("/workspace/big"))
        self.assertEqual(sandbox.exec("echo alive").stdout, "alive\n")

    def test_the_deadline_moves_and_ends_it(self) -> None:
        sandbox = self.create()
        before = sandbox.info.expires_at
        after = sandbox.set_ttl(2).expires_at
        assert before is not None and after is not None
        self.assertLess(after, before)
        eventually("its end", lambda: sandbox.refresh().state == "destroyed")
        self.assertEqual(sandbox.info.reason, "ttl_expired")
        self.assertIs(sandbox.destroy(), False)

    def test_threads_use_one_sandbox_at_once(self) -> None:
        answers: Dict[int, str] = {}

        def work(number: int) -> None:
            for turn in range(5):
                answers[number * 10 + turn] = self.sandbox.exec(f"echo {number * 10 + turn}").stdout

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        self.assertEqual(
            answers,
            {number * 10 + turn: f"{number * 10 + turn}\n" for number in range(8) for turn in range(5)},
        )

    def test_templates_and_keys(self) -> None:
        self.assertIn("base", [template.name for template in self.client.templates.list()])
        key = self.client.keys.create("python test", tenant="acme", expires_in_seconds=60)
        with Torpor(URL, key.key) as narrow, Sandbox.create(template="base", client=narrow) as sandbox:
            self.assertEqual(sandbox.info.tenant, "acme")
            with self.assertRaises(torpor.NotFoundError):
                Sandbox.get(self.sandbox.id, client=narrow)
            with self.assertRaises(torpor.PermissionError):
                narrow.keys.list()
        self.assertIs(self.client.keys.revoke(key.id), True)
        with self.assertRaises(torpor.AuthenticationError):
            list(Sandbox.list(url=URL, api_key=key.key))


def _until_output(stream: Any) -> Iterator[Any]:
    for event in stream:
        yield event
        if getattr(event, "data", None):
            return
