"""All contexts, and the default one of each language."""

import asyncio
import os
import uuid
from pathlib import Path

from torpor_notebook.context import Context
from torpor_notebook.limits import CONTEXTS_MAX

# E2B runs TypeScript with its JavaScript kernel too: without types, that is.
LANGUAGES = {"python": "python", "python3": "python", "bash": "bash", "javascript": "javascript", "js": "javascript", "typescript": "javascript", "ts": "javascript"}


class BadRequest(Exception):
    """What the client asked for cannot be."""


class NotFound(Exception):
    """There is no such context."""


class TooMany(Exception):
    """A bound is reached."""


class Contexts:
    def __init__(self, runtime: Path, default_cwd: str) -> None:
        self._runtime = runtime
        self._default_cwd = default_cwd
        self._by_id: dict[str, Context] = {}
        self._default_ids: dict[str, str] = {}
        self._default_starting: dict[str, asyncio.Task[Context]] = {}

    def list(self) -> list[Context]:
        return list(self._by_id.values())

    def get(self, id: str) -> Context:
        """Raises NotFound."""
        context = self._by_id.get(id)
        if context is None:
            raise NotFound(f"Context {id} not found")
        return context

    async def create(self, language: str | None, cwd: str | None) -> Context:
        """Raises BadRequest, TooMany, RuntimeError."""
        context = Context(str(uuid.uuid4()), language_named(language), self._folder(cwd), self._runtime)
        if len(self._by_id) >= CONTEXTS_MAX:
            raise TooMany(f"There are {CONTEXTS_MAX} contexts already, which is the most. Delete one first.")
        self._by_id[context.id] = context  # counted from now on, found by others once started
        try:
            await context.start()
        except BaseException:
            self._by_id.pop(context.id, None)
            raise
        return context

    async def default(self, language: str | None) -> Context:
        """The context of executions that name none; started when it is first asked for. Raises as `create`."""
        language = language_named(language)
        found = self._by_id.get(self._default_ids.get(language, ""))
        if found is not None:
            return found
        # Callers that come meanwhile share the start; one of them leaving does not end it.
        starting = self._default_starting.get(language)
        if starting is None:
            starting = asyncio.create_task(self.create(language, None))
            self._default_starting[language] = starting
            starting.add_done_callback(lambda task: self._default_started(language, task))
        return await asyncio.shield(starting)

    def _default_started(self, language: str, task: "asyncio.Task[Context]") -> None:
        self._default_starting.pop(language, None)
        if not task.cancelled() and task.exception() is None:
            self._default_ids[language] = task.result().id

    async def delete(self, id: str) -> None:
        context = self.get(id)
        del self._by_id[id]
        await context.delete()

    def look(self) -> None:
        """To be called when a child process has ended."""
        for context in self.list():
            context.look()

    def _folder(self, cwd: str | None) -> str:
        if cwd is None or cwd == "":
            return self._default_cwd
        folder = os.path.join(self._default_cwd, os.path.expanduser(cwd))
        if not os.path.isdir(folder):
            raise BadRequest(f"cwd {cwd!r} is not a directory in the sandbox; make it first")
        return folder


def language_named(name: str | None) -> str:
    """Raises BadRequest for languages there is no kernel for."""
    language = LANGUAGES.get((name or "python").lower())
    if language is None:
        raise BadRequest(f"Language {name!r} has no kernel in this template. There are: python, javascript, bash.")
    return language
