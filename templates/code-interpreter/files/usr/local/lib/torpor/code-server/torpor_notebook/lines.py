"""Jupyter's messages as lines of E2B's protocol."""

import json
from typing import Any

Line = dict[str, Any]

# Jupyter's MIME types and the fields clients read them from.
FIELD_OF_MIME = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}
KEEPALIVE: Line = {"type": "keepalive"}
# The stream of a held execution ends here and is to be gone on with.
CONTINUE: Line = {"type": "continue"}


def line_of(message: dict[str, Any]) -> Line | None:
    """The line for a message of a kernel's output channel; None for those that clients are not told of."""
    content = message["content"]
    match message["header"]["msg_type"]:
        case "stream":
            return {"type": content["name"], "text": content["text"], "timestamp": _time_of(message)}
        case "execute_result":
            return result_line(content["data"], is_main_result=True)
        case "display_data":
            return result_line(content["data"], is_main_result=False)
        case "error":
            return error_line(content["ename"], content["evalue"], "\n".join(content["traceback"]))
        case "execute_input":
            return {"type": "number_of_executions", "execution_count": content["execution_count"]}
    return None


def result_line(data: dict[str, Any], *, is_main_result: bool) -> Line:
    """One result in all its representations. Those without a field of their own are under `extra`, by MIME type."""
    line: Line = {"type": "result", "is_main_result": is_main_result}
    extra = {}
    for mime, value in data.items():
        field = FIELD_OF_MIME.get(mime)
        if field is None:
            extra[mime] = value
        elif value is not None:
            line[field] = _without_quotes(value) if field == "text" else value
    if extra:
        line["extra"] = extra
    return line


def error_line(name: str, value: str, traceback: str = "") -> Line:
    return {"type": "error", "name": name, "value": value, "traceback": traceback}


def unexpected_end() -> Line:
    """The words E2B's clients know for a kernel that died."""
    return error_line("UnexpectedEndOfExecution", "Connection to the execution was closed before the execution was finished")


def ran_too_long(limit_seconds: float) -> Line:
    return error_line("TimeoutError", f"the code ran for longer than its {limit_seconds:g} s and was interrupted")


def left_out(size_bytes: int, limit_bytes: int) -> Line:
    mib = 1024 * 1024
    text = f"A result of {size_bytes / mib:.0f} MiB was left out: at most {limit_bytes // mib} MiB are passed on. Write it to a file instead.\n"
    return {"type": "stderr", "text": text, "timestamp": ""}


def encode(line: Line) -> bytes:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"


def _without_quotes(text: Any) -> Any:
    if isinstance(text, str) and len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text


def _time_of(message: dict[str, Any]) -> str:
    date = message["header"].get("date")
    return date.isoformat() if hasattr(date, "isoformat") else str(date or "")
