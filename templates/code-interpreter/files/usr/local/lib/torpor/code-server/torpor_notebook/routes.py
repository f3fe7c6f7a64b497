"""The HTTP routes. Their errors are plain text, as E2B's clients expect."""

import asyncio
import json
import re
from contextlib import aclosing
from typing import Any

from tornado.iostream import StreamClosedError
from tornado.web import Application, HTTPError, RequestHandler

from torpor_notebook.context import Busy, Context, Execution
from torpor_notebook.contexts import BadRequest, Contexts, NotFound, TooMany
from torpor_notebook.held_execution import HeldExecutions, UnknownExecution
from torpor_notebook.limits import KEEPALIVE_SECONDS
from torpor_notebook.lines import KEEPALIVE, encode

STATUS_OF = {BadRequest: 400, NotFound: 404, UnknownExecution: 404, TooMany: 429, Busy: 429}
# Names the held execution that an answer is the stream of. An answer without it is cut off for good when its connection breaks.
EXECUTION_HEADER = "X-Torpor-Execution"
EXECUTION_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Route(RequestHandler):
    def initialize(self, contexts: Contexts, executions: HeldExecutions) -> None:
        self.contexts, self.executions = contexts, executions

    def prepare(self) -> None:
        # A page in a browser inside may post forms and text to any port, but JSON only to those that allow it.
        if self.request.body and not self.request.headers.get("Content-Type", "").startswith("application/json"):
            raise HTTPError(415, "Send JSON, with Content-Type: application/json")

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        for kind, status in STATUS_OF.items():
            if isinstance(error, kind):
                status_code = status
        self.set_status(status_code)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish((error.log_message if isinstance(error, HTTPError) else str(error or "")) or self._reason)

    def log_exception(self, kind: Any, error: Any, trace: Any) -> None:
        if not isinstance(error, (HTTPError, *STATUS_OF)):
            super().log_exception(kind, error, trace)

    def body(self) -> dict[str, Any]:
        """The request's JSON object; empty when there is no body."""
        try:
            parsed = json.loads(self.request.body or b"{}")
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"The body is not JSON: {error}") from None
        if not isinstance(parsed, dict):
            raise BadRequest("The body must be a JSON object")
        return parsed

    def reply(self, value: Any) -> None:
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(value))

    async def send_held(self, id: str, start: int) -> None:
        """Streams a held execution from line number `start` on. A client that is cut off may come back for the rest."""
        held = self.executions.get(id)
        if not held.keeps(start):
            raise UnknownExecution(f"Execution {id} has no lines from {start} on any more")
        self.set_header("Content-Type", "application/x-ndjson")
        self.set_header(EXECUTION_HEADER, id)
        try:
            await self.flush()
            async with aclosing(held.lines(start)) as lines:
                async for line in lines:
                    self.write(line)
                    await self.flush()
        except StreamClosedError:
            pass


def text_field(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise BadRequest(f"Field {name} must be a string")
    return value or None


def described(context: Context) -> dict[str, str]:
    return {"id": context.id, "language": context.language, "cwd": context.cwd}


class Health(Route):
    def get(self) -> None:
        self.finish("OK")


class ContextList(Route):
    def get(self) -> None:
        self.reply([described(context) for context in self.contexts.list()])

    async def post(self) -> None:
        body = self.body()
        self.reply(described(await self.contexts.create(text_field(body, "language"), text_field(body, "cwd"))))


class OneContext(Route):
    def get(self, id: str) -> None:
        self.reply(described(self.contexts.get(id)))

    async def delete(self, id: str) -> None:
        await self.contexts.delete(id)
        self.set_status(204)


class RestartContext(Route):
    async def post(self, id: str) -> None:
        await self.contexts.get(id).restart()
        self.set_status(204)


class Execute(Route):
    _execution: Execution | None = None

    async def post(self) -> None:
        body = self.body()
        code = body.get("code")
        if not isinstance(code, str):
            raise BadRequest("Field code must be a string: the source to execute")
        env_vars = self._env_vars(body)
        context_id, language = text_field(body, "context_id"), text_field(body, "language")
        if context_id is not None and language is not None:
            raise BadRequest("Only one of context_id or language can be given")
        context = self.contexts.get(context_id) if context_id is not None else await self.contexts.default(language)
        held_id, limit_seconds = self._held()
        if held_id is not None:
            self.executions.start(held_id, lambda: context.execute(code, env_vars), limit_seconds)
            return await self.send_held(held_id, 0)
        self._execution = context.execute(code, env_vars)
        self.set_header("Content-Type", "application/x-ndjson")
        try:
            await self.flush()  # the headers: a client knows at once that it is being served
            await self._stream(self._execution)
        except StreamClosedError:
            pass
        finally:
            self._execution.abandon()

    async def _stream(self, execution: Execution) -> None:
        waiting: asyncio.Task[Any] | None = None
        try:
            while True:
                waiting = waiting or asyncio.create_task(execution.next())
                done, _ = await asyncio.wait({waiting}, timeout=KEEPALIVE_SECONDS)
                if not done:
                    self.write(encode(KEEPALIVE))
                else:
                    line, waiting = waiting.result(), None
                    if line is None:
                        return
                    self.write(encode(line))
                await self.flush()
        finally:
            if waiting is not None:
                waiting.cancel()

    def on_connection_close(self) -> None:
        if self._execution is not None:
            self._execution.abandon()

    def _held(self) -> tuple[str | None, float]:
        """Id and time limit, in seconds, of an execution that is to be held; no id when its connection is all it has."""
        id = self.get_query_argument("execution_id", None)
        if id is None:
            return None, 0.0
        if not EXECUTION_ID.fullmatch(id):
            raise BadRequest("Query execution_id must be 1 to 64 letters, digits, - or _")
        limit_ms = self.get_query_argument("timeout_ms", "0")
        if not re.fullmatch(r"[0-9]{1,15}", limit_ms):
            raise BadRequest("Query timeout_ms must be a whole number of milliseconds, 0 for no limit")
        return id, int(limit_ms) / 1000

    def _env_vars(self, body: dict[str, Any]) -> dict[str, str]:
        found = body.get("env_vars")
        if found is None:
            return {}
        if not isinstance(found, dict) or not all(isinstance(value, str) and "\0" not in value for value in found.values()):
            raise BadRequest("Field env_vars must be an object of strings without NUL")
        for name in found:
            if not VARIABLE_NAME.fullmatch(name):
                raise BadRequest(f"Field env_vars has a name that no variable can have: {name!r}")
        return found


class OneExecution(Route):
    def get(self, id: str) -> None:
        self.executions.get(id)
        self.reply({"id": id})

    def delete(self, id: str) -> None:
        self.executions.abandon(id)
        self.set_status(204)


class ExecutionLines(Route):
    async def get(self, id: str) -> None:
        start = self.get_query_argument("from", "0")
        if not re.fullmatch(r"[0-9]{1,15}", start):
            raise BadRequest("Query from must be the number of a line")
        await self.send_held(id, int(start))


def application(contexts: Contexts, executions: HeldExecutions) -> Application:
    own = {"contexts": contexts, "executions": executions}
    return Application(
        [
            (r"/health", Health, own),
            (r"/execute", Execute, own),
            (r"/executions/([^/]+)", OneExecution, own),
            (r"/executions/([^/]+)/lines", ExecutionLines, own),
            (r"/contexts", ContextList, own),
            (r"/contexts/([^/]+)", OneContext, own),
            (r"/contexts/([^/]+)/restart", RestartContext, own),
        ],
        log_function=lambda handler: None,
    )
