"""Which server, which key, which connection."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
import unittest
from unittest import mock

import torpor
from torpor import ConfigurationError, Sandbox, Torpor
from torpor._connection_options import GivenKey, KeyFile, resolve_connection

from .fake_server import API_KEY, SANDBOX_ID, Call, FakeServer, sandbox_wire


class ConnectionOptions(unittest.TestCase):
    def test_an_argument_beats_the_environment_which_beats_the_default(self) -> None:
        environment = {"TORPOR_URL": "http://from-env:1", "TORPOR_API_KEY": "env-key"}
        given = resolve_connection(
            url="https://given.example/base/", api_key="arg-key", environment=environment
        )
        self.assertEqual(given.url, "https://given.example/base")
        self.assertEqual((given.port, given.base_path), (443, "/base"))
        self.assertEqual(given.api_key_source, GivenKey("arg-key"))
        from_environment = resolve_connection(environment=environment)
        self.assertEqual(from_environment.url, "http://from-env:1")
        self.assertEqual(from_environment.api_key_source, GivenKey("env-key"))
        default = resolve_connection(environment={"TORPOR_URL": " ", "TORPOR_API_KEY": ""})
        self.assertEqual(default.url, "http://127.0.0.1:7070")
        self.assertEqual(default.api_key_source, KeyFile("/var/lib/torpor/api-key"))

    def test_the_local_key_file_is_for_loopback_alone(self) -> None:
        for url in ("http://localhost:1", "http://127.9.9.9", "http://[::1]:7070"):
            self.assertIsNotNone(resolve_connection(url=url, environment={}).api_key_source)
        self.assertIsNone(resolve_connection(url="http://example.com", environment={}).api_key_source)

    def test_the_instance_of_a_state_directory_is_found_by_its_record_and_its_port_never_guessed(self) -> None:
        with tempfile.TemporaryDirectory() as state_dir:
            environment = {"TORPOR_STATE_DIR": state_dir}
            record = os.path.join(state_dir, "run", "server.json")
            with self.assertRaises(ConfigurationError) as caught:
                resolve_connection(environment=environment)
            self.assertIn(f"TORPOR_STATE_DIR is {state_dir}, but", str(caught.exception))
            self.assertIn(f"{record} cannot be read (No such file or directory)", str(caught.exception))
            os.mkdir(os.path.dirname(record))
            for spoilt in ("", "{}", "[1]", "null", '{"url":7}'):
                with open(record, "w", encoding="utf-8") as file:
                    file.write(spoilt)
                with self.subTest(spoilt), self.assertRaises(ConfigurationError) as caught:
                    resolve_connection(environment=environment)
                self.assertIn("set TORPOR_URL and TORPOR_API_KEY_FILE", str(caught.exception))
            with open(record, "w", encoding="utf-8") as file:
                file.write('{"pid":1,"start_time":1,"url":"http://127.0.0.1:7171"}')
            found = resolve_connection(environment=environment)
            self.assertEqual(found.url, "http://127.0.0.1:7171")
            self.assertEqual(found.api_key_source, KeyFile(os.path.join(state_dir, "api-key")))
            # One that serves a network names an address of that; to another URL the key does not go.
            with open(record, "w", encoding="utf-8") as file:
                file.write('{"url":"http://192.0.2.1:7070"}')
            self.assertEqual(resolve_connection(environment=environment).api_key_source, found.api_key_source)
            elsewhere = resolve_connection(url="http://example.com", environment=environment)
            self.assertIsNone(elsewhere.api_key_source)

    def test_a_bad_url_is_refused_with_what_to_do(self) -> None:
        for url in (
            "",
            "7070",
            "ftp://x",
            "http://",
            "http://a b/",
            "http://u:p@x",
            "http://x:port",
            "http://x/\n",
            "http://ä",
        ):
            with self.subTest(url), self.assertRaises(ConfigurationError):
                Torpor(url, "key")

    def test_a_bad_key_is_refused_without_being_quoted(self) -> None:
        for key in ("", "se cret", "secret\n", "sécret"):
            with self.subTest(key), self.assertRaises(ConfigurationError) as caught:
                Torpor("http://127.0.0.1:1", key)
            self.assertNotIn("cret", str(caught.exception))

    def test_bad_numbers_are_refused(self) -> None:
        for options in (
            {"call_timeout_seconds": -1},
            {"call_timeout_seconds": float("nan")},
            {"max_retries": -1},
        ):
            with self.subTest(options), self.assertRaises(ConfigurationError):
                Torpor("http://127.0.0.1:1", "key", **options)  # type: ignore[arg-type]

    def test_a_missing_key_file_is_named_with_the_ways_to_give_a_key(self) -> None:
        with mock.patch.dict(os.environ, {"TORPOR_API_KEY_FILE": "/nonexistent/key"}), self.assertRaises(
            ConfigurationError
        ) as caught:
            os.environ.pop("TORPOR_API_KEY", None)
            Sandbox.get(SANDBOX_ID, url="http://127.0.0.1:1")
        for said in ("/nonexistent/key", "no such file", "TORPOR_API_KEY", "api_key"):
            self.assertIn(said, str(caught.exception))

    def test_a_key_file_is_read_at_the_first_request_and_again_after_a_refusal(self) -> None:
        with FakeServer() as server, tempfile.NamedTemporaryFile("w+") as file:

            def get(call: Call) -> None:
                if call.headers["authorization"] == "Bearer new":
                    call.send_json(200, sandbox_wire())
                else:
                    call.send_failure(401, "unauthenticated")

            server.on("GET", "/v1/sandboxes/{id}", get)
            with mock.patch.dict(os.environ, {"TORPOR_API_KEY_FILE": file.name, "TORPOR_API_KEY": ""}):
                client = Torpor(server.url)
            file.write("old\n")
            file.flush()
            with self.assertRaises(torpor.AuthenticationError):
                Sandbox.get(SANDBOX_ID, client=client)
            file.seek(0)
            file.truncate()
            file.write(" new\n")
            file.flush()
            self.assertEqual(Sandbox.get(SANDBOX_ID, client=client).id, SANDBOX_ID)
            client.close()

    def test_a_client_and_a_url_together_are_refused(self) -> None:
        with self.assertRaises(ConfigurationError):
            Sandbox.get(SANDBOX_ID, client=Torpor("http://127.0.0.1:1", "k"), url="http://127.0.0.1:2")


class Connections(unittest.TestCase):
    def setUp(self) -> None:
        self.server = FakeServer().with_sandbox()
        self.addCleanup(self.server.close)

    def connections(self) -> int:
        return len({call["connection"] for call in self.server.calls})

    def test_one_connection_carries_one_thread_s_requests(self) -> None:
        client = self.server.client()
        for _ in range(10):
            Sandbox.get(SANDBOX_ID, client=client)
        self.assertEqual(self.connections(), 1)

    def test_calls_without_a_client_share_connections(self) -> None:
        with mock.patch.dict(os.environ, self.server.environment):
            sandbox = Sandbox.get(SANDBOX_ID)
            for _ in range(5):
                Sandbox.get(SANDBOX_ID)
            sandbox.refresh()
        self.assertEqual(self.connections(), 1)

    def test_a_refused_request_keeps_its_connection(self) -> None:
        client = self.server.client()
        for _ in range(3):
            with self.assertRaises(torpor.NotFoundError):
                Sandbox.get("sdoesnotexistatallxxxx", client=client)
        self.assertEqual(self.connections(), 1)

    def test_threads_never_share_a_connection_at_once_and_get_their_own_answers(self) -> None:
        def get(call: Call) -> None:
            call.send_json(200, sandbox_wire(id=call.path_only.rsplit("/", 1)[1]))

        self.server.on("GET", "/v1/sandboxes/*", get)
        client = self.server.client()
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for turn in range(25):
                    wanted = f"s{number:03d}{turn:03d}xxxxxxxxxxxxxxxx"
                    if Sandbox.get(wanted, client=client).id != wanted:
                        raise AssertionError(f"another's answer for {wanted}")
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(failures, [])
        self.assertLessEqual(self.connections(), 16)

    def test_a_connection_the_server_closed_while_idle_is_not_used_again(self) -> None:
        def closing(call: Call) -> None:
            call.send_json(200, sandbox_wire())
            call.close_connection = True

        self.server.on("GET", "/v1/sandboxes/{id}", closing)
        client = self.server.client(max_retries=0)
        for _ in range(3):
            Sandbox.get(SANDBOX_ID, client=client)
            time.sleep(0.05)
        self.assertEqual(self.connections(), 3)

    def test_bytes_that_come_while_a_connection_is_idle_are_not_taken_for_an_answer(self) -> None:
        def get(call: Call) -> None:
            # As some servers do when they tire of waiting for the next request.
            call.send_json(200, sandbox_wire())
            call.send_failure(408, "http_408", "too slow")
            call.close_connection = True

        self.server.on("GET", "/v1/sandboxes/{id}", get)
        client = self.server.client(max_retries=0)
        for _ in range(3):
            self.assertEqual(Sandbox.get(SANDBOX_ID, client=client).id, SANDBOX_ID)
            time.sleep(0.05)

    def test_a_kept_connection_that_breaks_as_we_send_costs_no_retry(self) -> None:
        turns = iter(range(100))

        def get(call: Call) -> None:
            if next(turns) == 1:
                call.cut()
            else:
                call.send_json(200, sandbox_wire())

        self.server.on("GET", "/v1/sandboxes/{id}", get)
        client = self.server.client(max_retries=0)
        Sandbox.get(SANDBOX_ID, client=client)
        Sandbox.get(SANDBOX_ID, client=client)
        self.assertEqual(len(self.server.calls), 3)

    @unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
    def test_a_forked_child_leaves_its_parent_s_connections_alone(self) -> None:
        client = self.server.client()
        Sandbox.get(SANDBOX_ID, client=client)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                Sandbox.get(SANDBOX_ID, client=client)
                status = 0
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        Sandbox.get(SANDBOX_ID, client=client)
        first, in_child, after = (call["connection"] for call in self.server.calls)
        self.assertEqual(first, after)
        self.assertNotEqual(first, in_child)

    def test_every_request_says_who_asks_and_posts_carry_a_key_of_their_own(self) -> None:
        client = self.server.client()
        for _ in range(2):
            Sandbox.create(client=client)
        headers = [call["headers"] for call in self.server.calls]
        self.assertTrue(all(each["authorization"] == f"Bearer {API_KEY}" for each in headers))
        self.assertTrue(all(each["user-agent"].startswith("torpor-sdk-python/") for each in headers))
        self.assertEqual(len({each["idempotency-key"] for each in headers}), 2)

    def test_nothing_listening_is_told_with_what_to_do(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as held:
            port = held.getsockname()[1]
        with self.assertRaises(torpor.ConnectionError) as caught:
            Sandbox.get(SANDBOX_ID, client=Torpor(f"http://127.0.0.1:{port}", "k", max_retries=0))
        self.assertIn("torpor up", str(caught.exception))
        self.assertIsInstance(caught.exception, ConnectionError)
