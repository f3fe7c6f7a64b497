"""Whether this client knows what the server's own description of its API holds."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import unittest
from pathlib import Path
from typing import Any, Dict, Set

from torpor import (
    ApiKey,
    ExecResult,
    FileEntry,
    LedgerEntry,
    PreviewUrl,
    Sandbox,
    SandboxInfo,
    SandboxProcess,
    SandboxSample,
    Template,
)
from torpor._error_answers import _CLASS_BY_CODE, _CLASS_BY_STATUS

_ERROR_CODES = Path(__file__).parents[2] / "protocol" / "src" / "error-codes.ts"
_DESCRIPTION = Path(__file__).parents[2] / "docs" / "openapi.json"

#: Codes that need no class of their own: a bug of the server, and one that no client sees.
_UNCLASSED = {"internal", "client_closed_request"}


@unittest.skipUnless(
    _DESCRIPTION.is_file(), "docs/openapi.json is not there: this is not a checkout of Torpor"
)
class OpenApi(unittest.TestCase):
    description: Dict[str, Any] = {}

    @classmethod
    def setUpClass(cls) -> None:
        cls.description = json.loads(_DESCRIPTION.read_text())

    def body_fields(self, path: str) -> Set[str]:
        content = self.description["paths"][path]["post"]["requestBody"]["content"]
        return set(content["application/json"]["schema"]["properties"])

    def schema_fields(self, name: str) -> Set[str]:
        return set(self.description["components"]["schemas"][name]["properties"])

    def item_fields(self, path: str) -> Set[str]:
        content = self.description["paths"][path]["get"]["responses"]["200"]["content"]
        return set(content["application/json"]["schema"]["properties"]["items"]["items"]["properties"])

    def assert_takes(self, function: Any, fields: Set[str]) -> None:
        missing = fields - set(inspect.signature(function).parameters)
        self.assertEqual(missing, set(), f"{function.__qualname__} lacks options of the server")

    def assert_has(self, shape: Any, fields: Set[str]) -> None:
        missing = fields - {field.name for field in dataclasses.fields(shape)}
        self.assertEqual(missing, set(), f"{shape.__name__} lacks fields of the server")

    def test_every_option_of_a_create_is_an_argument(self) -> None:
        self.assert_takes(Sandbox.create, self.body_fields("/v1/sandboxes"))
        if "/v1/sessions" in self.description["paths"]:
            self.assert_takes(Sandbox.session, self.body_fields("/v1/sessions"))

    def test_every_option_of_an_exec_is_an_argument(self) -> None:
        fields = self.body_fields("/v1/sandboxes/{id}/exec")
        # `encoding` is `binary`, `background` is `start`, which alone can keep standard input open.
        self.assert_takes(Sandbox.exec, fields - {"encoding", "background", "keep_stdin_open"})
        self.assert_takes(Sandbox.start, fields - {"encoding", "background", "max_output_bytes"})

    def test_every_option_of_a_preview_url_is_an_argument(self) -> None:
        self.assert_takes(Sandbox.preview_url, self.body_fields("/v1/sandboxes/{id}/ports/{port}/url"))

    def test_every_field_of_an_answer_is_an_attribute(self) -> None:
        self.assert_has(SandboxInfo, self.schema_fields("Sandbox"))
        self.assert_has(ExecResult, self.schema_fields("ExecResult") - {"encoding"})
        self.assert_has(SandboxProcess, self.schema_fields("Process"))
        self.assert_has(FileEntry, self.schema_fields("FileEntry") - {"size"} | {"size_bytes"})
        self.assert_has(Template, self.schema_fields("Template"))
        self.assert_has(PreviewUrl, self.schema_fields("PreviewUrl"))
        self.assert_has(ApiKey, self.schema_fields("ApiKey"))
        self.assert_has(SandboxSample, self.item_fields("/v1/sandboxes/{id}/metrics"))
        self.assert_has(LedgerEntry, self.item_fields("/v1/ledger") - {"v"})


@unittest.skipUnless(_ERROR_CODES.is_file(), "protocol/ is not there: this is not a checkout of Torpor")
class ErrorCodes(unittest.TestCase):
    def test_every_error_code_has_a_class_that_fits_its_status(self) -> None:
        table = re.findall(r"^  (\w+): \{ status: (\d+),", _ERROR_CODES.read_text(), re.MULTILINE)
        self.assertGreater(len(table), 20)
        for code, status in table:
            with self.subTest(code):
                if code in _UNCLASSED:
                    continue
                self.assertIn(code, _CLASS_BY_CODE)
                # 429 is two things, too many requests and no room; 410 too: an ended sandbox, and forgotten events; and 403:
                # a key that may not, and an account that has all it may have.
                if status not in ("403", "410", "429"):
                    self.assertIs(_CLASS_BY_CODE[code], _CLASS_BY_STATUS[int(status)])
