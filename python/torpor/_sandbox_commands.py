"""Requests that run commands."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Union

from ._answered_list import answered_list
from ._request import Request, invalid, json_fields, path_segment
from ._transport import Transport
from ._upload_body import to_upload_body
from .background_command import BackgroundCommand
from .errors import NotFoundError
from .exec_result import Command, ExecResult, check_command, exec_result
from .exec_stream import ExecStream, decode_base64
from .sandbox_process import SandboxProcess, sandbox_process

#: Server's default for `timeout_seconds`.
_DEFAULT_TIMEOUT_SECONDS = 60
#: Time a request may take beyond its command's own limit, seconds: wake, start, kill grace, transfer.
_GRACE_SECONDS = 30
#: Commands allowed to run longer than this are read as a stream, whose keepalives hold the connection open, seconds.
_LONGEST_BUFFERED_SECONDS = 240
#: Time limit of a background command that sets none, seconds: the longest the server takes.
_BACKGROUND_TIMEOUT_SECONDS = 86_400

AnyResult = Union[ExecResult[str], ExecResult[bytes]]


class SandboxCommands:
    """The commands of one sandbox. Its public face is on Sandbox."""

    def __init__(self, transport: Transport, root: str) -> None:
        """`root` is the path of the sandbox's resource."""
        self._transport = transport
        self._root = root

    def exec(
        self, fields: Mapping[str, Any], call: Mapping[str, Any], *, binary: bool, check: bool
    ) -> AnyResult:
        encoding = "base64" if binary else None
        wire = self._transport.json(self._exec_request({**fields, "encoding": encoding}, call))
        result: AnyResult
        if wire.get("encoding") == "base64":
            result = exec_result(wire, decode_base64(wire.get("stdout")), decode_base64(wire.get("stderr")))
        else:
            result = exec_result(wire, str(wire.get("stdout", "")), str(wire.get("stderr", "")))
        if check:
            check_command(fields["cmd"], result)
        return result

    def exec_stream(
        self, fields: Mapping[str, Any], call: Mapping[str, Any], *, binary: bool, check: bool
    ) -> ExecStream[Any]:
        request = self._exec_request(fields, call)
        request.accept = "application/x-ndjson"
        return ExecStream(
            lambda: self._transport.open(request),
            cmd=fields["cmd"],
            binary=binary,
            check=check,
            max_output_bytes=fields["max_output_bytes"],
        )

    def attach(
        self,
        exec_id: Union[str, int],
        *,
        check: bool,
        max_output_bytes: Optional[int],
        call_timeout_seconds: Optional[float],
    ) -> ExecStream[str]:
        request = Request(
            "GET",
            f"{self._process_path(exec_id)}/output",
            accept="application/x-ndjson",
            call_timeout_seconds=call_timeout_seconds,
        )
        return ExecStream(
            lambda: self._transport.open(request),
            cmd=None,
            binary=False,
            check=check,
            max_output_bytes=max_output_bytes,
        )

    def start(self, fields: Mapping[str, Any], call: Mapping[str, Any]) -> BackgroundCommand:
        timeout_seconds = fields["timeout_seconds"]
        request = self._exec_request(
            {
                **fields,
                "timeout_seconds": _BACKGROUND_TIMEOUT_SECONDS
                if timeout_seconds is None
                else timeout_seconds,
                "background": True,
            },
            call,
        )
        # It is answered once the command has started.
        request.call_timeout_seconds = call["call_timeout_seconds"]
        wire = self._transport.json(request)
        return BackgroundCommand(self, str(wire.get("exec_id")), int(wire.get("pid", 0)))

    def kill(self, exec_id: Union[str, int], signal: str, call_timeout_seconds: Optional[float]) -> bool:
        request = Request(
            "POST",
            f"{self._process_path(exec_id)}/signal",
            json_body=json_fields({"signal": signal}),
            call_timeout_seconds=call_timeout_seconds,
        )
        try:
            self._transport.text(request)
        except NotFoundError as error:
            if error.code == "process_not_found":
                return False
            raise
        return True

    def write_stdin(
        self, exec_id: str, data: Union[str, bytes], close: bool, call_timeout_seconds: Optional[float]
    ) -> None:
        self._transport.text(
            Request(
                "POST",
                f"{self._process_path(exec_id)}/stdin",
                query={"close": close or None},
                upload=to_upload_body(data),
                call_timeout_seconds=call_timeout_seconds,
            )
        )

    def processes(self, call_timeout_seconds: Optional[float]) -> List[SandboxProcess]:
        request = Request("GET", f"{self._root}/processes", call_timeout_seconds=call_timeout_seconds)
        return [sandbox_process(wire) for wire in answered_list(self._transport.json(request), "processes")]

    def _exec_request(self, fields: Mapping[str, Any], call: Mapping[str, Any]) -> Request:
        timeout_seconds: Optional[float] = call["call_timeout_seconds"]
        if timeout_seconds is None:
            timeout_seconds = (fields["timeout_seconds"] or _DEFAULT_TIMEOUT_SECONDS) + _GRACE_SECONDS
        return Request(
            "POST",
            f"{self._root}/exec",
            json_body=json_fields(fields),
            call_timeout_seconds=timeout_seconds,
            idempotency_key=call["idempotency_key"],
        )

    def _process_path(self, exec_id: Union[str, int]) -> str:
        return f"{self._root}/processes/{path_segment('exec_id', exec_id)}"


def can_be_buffered(fields: Mapping[str, Any]) -> bool:
    """Whether the answer may come in one piece, which is the quicker way."""
    return bool((fields["timeout_seconds"] or _DEFAULT_TIMEOUT_SECONDS) <= _LONGEST_BUFFERED_SECONDS)


def command_fields(
    cmd: Command,
    *,
    cwd: Optional[str],
    env: Optional[Mapping[str, str]],
    user: Optional[str],
    stdin: Optional[str],
    timeout_seconds: Optional[float],
    max_output_bytes: Optional[int],
) -> Dict[str, Any]:
    """The body of an exec. Raises InvalidRequestError on what would be misread rather than refused."""
    if isinstance(cmd, (bytes, bytearray)):
        raise invalid("cmd must be text or a sequence of texts; it is bytes", "cmd")
    if timeout_seconds is not None and not (0 < timeout_seconds < float("inf")):
        raise invalid(f"timeout_seconds must be more than 0; it is {timeout_seconds!r}", "timeout_seconds")
    return {
        "cmd": cmd if isinstance(cmd, str) else list(cmd),
        "cwd": cwd,
        "env": None if env is None else dict(env),
        "user": user,
        "stdin": stdin,
        "timeout_seconds": timeout_seconds,
        "max_output_bytes": max_output_bytes,
    }
