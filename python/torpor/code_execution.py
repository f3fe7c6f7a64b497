"""Code run in a notebook kernel, and what it gave."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional

from ._error_answers import error_from_fields
from ._ndjson import read_lines
from ._transport import OpenAnswer

#: Output kept, characters per stream: what is beyond goes to the callbacks alone.
_KEPT_CHARACTERS = 4 * 1024 * 1024


@dataclass(frozen=True)
class CodeError:
    """An exception of the code that was run, a limit (`TimeoutError`), or `ExecutionLost`: the sandbox fell asleep or ended.

    Of one that sleeps the code goes on after the wake, unheard.
    """

    #: Its class, e.g. `ValueError`.
    name: str
    value: str
    traceback: str


@dataclass(frozen=True)
class CodeResult:
    """One result in all the forms the kernel gave. Of `png`, `jpeg` and `pdf` the form is base64."""

    text: Optional[str] = None
    html: Optional[str] = None
    markdown: Optional[str] = None
    svg: Optional[str] = None
    png: Optional[str] = None
    jpeg: Optional[str] = None
    pdf: Optional[str] = None
    latex: Optional[str] = None
    json: Any = None
    javascript: Optional[str] = None
    #: A data frame's columns.
    data: Optional[Dict[str, List[Any]]] = None
    #: A chart's type, title and elements.
    chart: Optional[Dict[str, Any]] = None
    #: Forms of other MIME types.
    extra: Optional[Dict[str, Any]] = None
    #: Whether it is the value of the last expression, and not something displayed on the way.
    is_main_result: bool = False


@dataclass
class CodeExecution:
    """What a piece of code gave. An exception in it is a result, not an error of the call."""

    results: List[CodeResult] = field(default_factory=list)
    stdout: str = ""
    stderr: str = ""
    #: Whether output was left out.
    truncated: bool = False
    error: Optional[CodeError] = None
    execution_count: Optional[int] = None

    @property
    def text(self) -> Optional[str]:
        """The value of the last expression as text; None when there is none."""
        return next((result.text for result in self.results if result.is_main_result), None)


TextCallback = Callable[[str], object]
ResultCallback = Callable[[CodeResult], object]


def read_execution(
    open_answer: OpenAnswer,
    on_stdout: Optional[TextCallback],
    on_stderr: Optional[TextCallback],
    on_result: Optional[ResultCallback],
) -> CodeExecution:
    """Reads a stream of code to its end. What a callback raises ends it, which interrupts the code."""
    execution = CodeExecution()
    outputs = {"stdout": _KeptText(), "stderr": _KeptText()}
    callbacks = {"stdout": on_stdout, "stderr": on_stderr}
    try:
        for line in read_lines(open_answer, "running code"):
            kind = line.get("type")
            if kind in ("stdout", "stderr"):
                text = str(line.get("text", ""))
                outputs[kind].add(text)
                callback = callbacks[kind]
                if callback is not None:
                    callback(text)
            elif kind == "result":
                result = code_result(line)
                execution.results.append(result)
                if on_result is not None:
                    on_result(result)
            elif kind == "error" and "name" in line:
                execution.error = code_error(line)
            elif kind == "number_of_executions":
                execution.execution_count = line.get("execution_count")
            elif kind == "error" or "error" in line:
                raise error_from_fields(line)
    finally:
        open_answer.answer.close()
    execution.stdout, execution.stderr = outputs["stdout"].text(), outputs["stderr"].text()
    execution.truncated = outputs["stdout"].is_truncated or outputs["stderr"].is_truncated
    return execution


def code_result(wire: Mapping[str, Any]) -> CodeResult:
    known = {name: wire[name] for name in CodeResult.__dataclass_fields__ if name in wire}
    known["is_main_result"] = wire.get("is_main_result") is True
    return CodeResult(**known)


def code_error(wire: Mapping[str, Any]) -> CodeError:
    traceback = wire.get("traceback", "")
    return CodeError(
        name=str(wire.get("name", "")),
        value=str(wire.get("value", "")),
        traceback="\n".join(traceback) if isinstance(traceback, list) else str(traceback),
    )


class _KeptText:
    """The first characters of one stream."""

    def __init__(self) -> None:
        self._pieces: List[str] = []
        self._room = _KEPT_CHARACTERS
        self.is_truncated = False

    def add(self, text: str) -> None:
        kept = text[: self._room]
        if len(kept) < len(text):
            self.is_truncated = True
        if kept:
            self._pieces.append(kept)
            self._room -= len(kept)

    def text(self) -> str:
        return "".join(self._pieces)
