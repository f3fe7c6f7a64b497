"""How code runs in a sandbox."""

from __future__ import annotations

from typing import Any, Callable, List, Literal, Mapping, Optional, Union, overload

from ._request import Request, json_fields
from ._sandbox_commands import AnyResult, SandboxCommands, can_be_buffered, command_fields
from ._sandbox_resource import SandboxResource
from ._transport import Transport
from .background_command import BackgroundCommand
from .code_contexts import CodeContext, CodeContexts, context_id
from .code_execution import CodeExecution, ResultCallback, TextCallback, read_execution
from .exec_result import Command, ExecResult
from .exec_stream import ExecOutput, ExecStream
from .sandbox_process import SandboxProcess

#: Time a call may be silent beyond its code's own limit, seconds.
_GRACE_SECONDS = 30.0


class SandboxExecution(SandboxResource):
    """The part of Sandbox that runs things."""

    def __init__(self, transport: Transport, wire: Mapping[str, Any]) -> None:
        super().__init__(transport, wire)
        self._commands = SandboxCommands(transport, self._path)
        #: Notebook kernels.
        self.code_contexts = CodeContexts(transport, f"{self._path}/code")

    @overload
    def exec(
        self,
        cmd: Command,
        *,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        stdin: Optional[str] = None,
        timeout_seconds: Optional[float] = None,
        max_output_bytes: Optional[int] = None,
        check: bool = False,
        binary: Literal[False] = False,
        on_stdout: Optional[Callable[[str], object]] = None,
        on_stderr: Optional[Callable[[str], object]] = None,
        idempotency_key: Optional[str] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> ExecResult[str]:
        ...

    @overload
    def exec(
        self,
        cmd: Command,
        *,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        stdin: Optional[str] = None,
        timeout_seconds: Optional[float] = None,
        max_output_bytes: Optional[int] = None,
        check: bool = False,
        binary: Literal[True],
        on_stdout: Optional[Callable[[bytes], object]] = None,
        on_stderr: Optional[Callable[[bytes], object]] = None,
        idempotency_key: Optional[str] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> ExecResult[bytes]:
        ...

    def exec(
        self,
        cmd: Command,
        *,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        stdin: Optional[str] = None,
        timeout_seconds: Optional[float] = None,
        max_output_bytes: Optional[int] = None,
        check: bool = False,
        binary: bool = False,
        on_stdout: Optional[Callable[[Any], object]] = None,
        on_stderr: Optional[Callable[[Any], object]] = None,
        idempotency_key: Optional[str] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> AnyResult:
        """Runs a command and waits for its end. It is never run twice, whatever is retried.

        `cmd`: text is run by a login shell, a sequence as it is. `cwd`: default the template's, `/workspace` in
        Torpor's own. `env`: added to the sandbox's. `user`: default `user`. `stdin`: text given on standard input,
        which is then closed; without it standard input is empty. `timeout_seconds`: until TERM, then KILL, to all the
        command started; default 60, at most 86,400. `max_output_bytes`: kept per stream for the result;
        default 4 MiB, at most 64 MiB, the rest is counted and makes it `truncated`. Callbacks and events get all output,
        whatever this says. `binary`: output as bytes, exact; else as text, no character cut in
        two. `on_stdout`, `on_stderr`: called with output as it comes; a slow one slows the command.
        `idempotency_key`: covers what no retry can, this process ending in between. `call_timeout_seconds`: default
        30 s more than the command's own.

        A command that fails is a result, not an error, unless `check=True`: then any end but exit code 0 raises
        CommandError. ^C, and an error raised by a callback, kill the command. Raises SandboxEndedError when the sandbox
        had ended before the command began.
        """
        fields = command_fields(
            cmd,
            cwd=cwd,
            env=env,
            user=user,
            stdin=stdin,
            timeout_seconds=timeout_seconds,
            max_output_bytes=max_output_bytes,
        )
        call = {"idempotency_key": idempotency_key, "call_timeout_seconds": call_timeout_seconds}
        if on_stdout is None and on_stderr is None and can_be_buffered(fields):
            return self._commands.exec(fields, call, binary=binary, check=check)
        callbacks = {"stdout": on_stdout, "stderr": on_stderr}
        with self._commands.exec_stream(fields, call, binary=binary, check=check) as stream:
            for event in stream:
                if isinstance(event, ExecOutput):
                    callback = callbacks[event.stream]
                    if callback is not None:
                        callback(event.data)
            return stream.result

    @overload
    def exec_stream(
        self,
        cmd: Command,
        *,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        stdin: Optional[str] = None,
        timeout_seconds: Optional[float] = None,
        max_output_bytes: Optional[int] = None,
        check: bool = False,
        binary: Literal[False] = False,
        idempotency_key: Optional[str] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> ExecStream[str]:
        ...

    @overload
    def exec_stream(
        self,
        cmd: Command,
        *,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        stdin: Optional[str] = None,
        timeout_seconds: Optional[float] = None,
        max_output_bytes: Optional[int] = None,
        check: bool = False,
        binary: Literal[True],
        idempotency_key: Optional[str] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> ExecStream[bytes]:
        ...

    def exec_stream(
        self,
        cmd: Command,
        *,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        stdin: Optional[str] = None,
        timeout_seconds: Optional[float] = None,
        max_output_bytes: Optional[int] = None,
        check: bool = False,
        binary: bool = False,
        idempotency_key: Optional[str] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> Union[ExecStream[str], ExecStream[bytes]]:
        """Runs a command; its events come as they happen, its result at `.result`. Use it in a `with` block.

        The arguments are those of `exec`.
        """
        fields = command_fields(
            cmd,
            cwd=cwd,
            env=env,
            user=user,
            stdin=stdin,
            timeout_seconds=timeout_seconds,
            max_output_bytes=max_output_bytes,
        )
        call = {"idempotency_key": idempotency_key, "call_timeout_seconds": call_timeout_seconds}
        return self._commands.exec_stream(fields, call, binary=binary, check=check)

    def start(
        self,
        cmd: Command,
        *,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        stdin: Optional[str] = None,
        keep_stdin_open: bool = False,
        timeout_seconds: Optional[float] = None,
        idempotency_key: Optional[str] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> BackgroundCommand:
        """Starts a command that goes on without us; its `timeout_seconds` is 86,400 (a day) when not given.

        `keep_stdin_open`: its standard input takes what `write_stdin` is given; not together with `stdin`.
        """
        fields = command_fields(
            cmd,
            cwd=cwd,
            env=env,
            user=user,
            stdin=stdin,
            timeout_seconds=timeout_seconds,
            max_output_bytes=None,
        )
        # Left out unless wanted, so that a server that does not know it is not asked for it.
        fields["keep_stdin_open"] = keep_stdin_open or None
        call = {"idempotency_key": idempotency_key, "call_timeout_seconds": call_timeout_seconds}
        return self._commands.start(fields, call)

    def attach(
        self,
        exec_id: Union[str, int],
        *,
        max_output_bytes: Optional[int] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> ExecStream[str]:
        """The output of a command, by `exec_id` or pid, that runs or ended lately (5 minutes).

        From its start as far as it is kept, and on. Leaving lets it run.
        """
        return self._commands.attach(
            exec_id,
            check=False,
            max_output_bytes=max_output_bytes,
            call_timeout_seconds=call_timeout_seconds,
        )

    def kill(
        self,
        exec_id: Union[str, int],
        signal: str = "SIGKILL",
        *,
        call_timeout_seconds: Optional[float] = None,
    ) -> bool:
        """Signals a command, by `exec_id` or pid, and all it started. Returns False when there was none."""
        return self._commands.kill(exec_id, signal, call_timeout_seconds)

    def processes(self, *, call_timeout_seconds: Optional[float] = None) -> List[SandboxProcess]:
        """What runs in it, of what was started through the API."""
        return self._commands.processes(call_timeout_seconds)

    def run_code(
        self,
        code: str,
        *,
        context: Union[CodeContext, str, None] = None,
        language: Optional[str] = None,
        timeout_seconds: Optional[float] = None,
        on_stdout: Optional[TextCallback] = None,
        on_stderr: Optional[TextCallback] = None,
        on_result: Optional[ResultCallback] = None,
        idempotency_key: Optional[str] = None,
        call_timeout_seconds: Optional[float] = None,
    ) -> CodeExecution:
        """Runs code in a notebook kernel, whose variables stay for the next call, and after hibernation.

        `context`: which kernel; default that of the `language`, which is Python unless given. An exception in the code
        is in `.error`, not raised. ^C, and an error raised by a callback, interrupt the code. `call_timeout_seconds`:
        longest silence; default 30 s more than `timeout_seconds`, else the client's (the server sends a sign of life
        every few seconds).
        """
        if call_timeout_seconds is None and timeout_seconds is not None:
            call_timeout_seconds = timeout_seconds + _GRACE_SECONDS
        fields = {
            "code": code,
            "context_id": None if context is None else context_id(context),
            "language": language,
            "timeout_seconds": timeout_seconds,
        }
        request = Request(
            "POST",
            f"{self._path}/code",
            json_body=json_fields(fields),
            accept="application/x-ndjson",
            call_timeout_seconds=call_timeout_seconds,
            idempotency_key=idempotency_key,
        )
        return read_execution(self._transport.open(request), on_stdout, on_stderr, on_result)
