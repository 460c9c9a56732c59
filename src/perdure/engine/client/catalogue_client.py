"""Asking for runs of tasks whose code is elsewhere: on behalf of others, many at a time.

What a task is like comes from the catalogue, which is read at most once a moment: a server asks
for thousands of runs a second, and tasks change when somebody deploys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from perdure.core.decide import NewRun, continuing, decide_create
from perdure.core.json_text import encode_value
from perdure.core.run.commit import Commit, prepare_commit
from perdure.core.run.run import Actor, Run
from perdure.engine.client.trigger import CommitBatcher, Made, handle_of, new_run
from perdure.engine.observability.tracing import Carrier, Tracing
from perdure.engine.runtime.input import find_similar
from perdure.engine.runtime.runtime import Runtime
from perdure.engine.tasks.catalogue import (
    KnownTask,
    TaskEntry,
    by_name,
    check_payload,
    known_tasks,
    settings_of,
)
from perdure.engine.tasks.options import TriggerOptions
from perdure.engine.tasks.task_definition import TaskDefinition
from perdure.errors import PerdureError, RunNotFound, TaskNotFound

if TYPE_CHECKING:
    from perdure.engine.client.handle import HandleApp, RunHandle

FRESH = 1.0
"""Seconds for which the catalogue is taken to be as it was."""
MAX_HINTS = 10
"""Unknown names that are compared with all known ones, for each read of the catalogue."""


class Wish(msgspec.Struct, frozen=True):
    """One run that somebody asks for."""

    task: str
    payload: Mapping[str, Any]
    options: TriggerOptions = TriggerOptions()
    payload_size: int = 0
    """Bytes of the payload's JSON, if they are known."""
    origin: Origin | None = None
    trace_carrier: Carrier | None = None
    """The span of the caller, if the caller is traced."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Of a run that a worker or a client without a database asks for. The same `run_id` and
    `commit_id` again make no second run. `parent`: the run whose handler asks."""

    run_id: str
    commit_id: str
    payload_json: msgspec.Raw
    parent: Run | None = None
    batch_id: str | None = None
    carrier: Carrier | None = None


Offload = Callable[..., Awaitable[Any]]
"""`await offload(size, function, *arguments)`: the function's result. It may be computed on another
thread if it works on many bytes."""


async def run_inline(size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """An `Offload` that stays on the event loop."""
    return function(*arguments)


class Asking:
    """The trigger side of a process that has nobody's code."""

    def __init__(self, runtime: Runtime, tracing: Tracing, app: HandleApp) -> None:
        """`app`: the one that the handles belong to."""
        self._runtime = runtime
        self._tracing = tracing
        self._app = app
        self._batches = CommitBatcher(runtime)
        self._entries: dict[str, TaskEntry] = {}
        self._similar: dict[str, str | None] = {}
        self._read_at = float("-inf")

    async def ask(self, wish: Wish, actor: Actor, offload: Offload = run_inline) -> RunHandle[Any]:
        """Durable when it returns. Raises TaskNotFound, InvalidInput and the conflicts of keys."""
        [made] = await self.ask_all([wish], actor, None, offload)
        if isinstance(made, Exception):
            raise made
        return made

    async def ask_all(
        self,
        wishes: Sequence[Wish | PerdureError],
        actor: Actor,
        batch_id: str | None = None,
        offload: Offload = run_inline,
    ) -> list[RunHandle[Any] | Exception]:
        """In the order of the wishes: a handle, or what was wrong with that one. An error among
        the wishes is returned as it is."""
        await self._look_up({wish.task for wish in wishes if isinstance(wish, Wish)})
        continued = await self._find_continued(wishes)
        each = (self._made(wish, actor, batch_id, offload, continued) for wish in wishes)
        return list(await asyncio.gather(*each))

    async def _find_continued(self, wishes: Sequence[Wish | PerdureError]) -> Mapping[str, Run]:
        """Return the runs that the new ones continue, by their ids. A parent is known already."""
        good = [wish for wish in wishes if isinstance(wish, Wish)]
        parents = [wish.origin.parent for wish in good if wish.origin is not None]
        found = {run.id: run for run in parents if run is not None}
        run_ids = {wish.options.continuation_of for wish in good} - found.keys()
        wanted = sorted(run_id for run_id in run_ids if run_id is not None)
        return found | await self._runtime.storage.get(wanted) if wanted else found

    async def _made(
        self,
        wish: Wish | PerdureError,
        actor: Actor,
        batch_id: str | None,
        offload: Offload,
        continued: Mapping[str, Run],
    ) -> RunHandle[Any] | Exception:
        if isinstance(wish, PerdureError):
            return wish
        try:
            task = self._task(wish.task)
            schema = self._entries[wish.task].payload_schema or {}
            if wish.origin is not None:
                await offload(wish.payload_size, check_payload, wish.task, schema, wish.payload)
                return await self._made_for(wish, wish.origin, task, actor, continued)
            payload = await offload(wish.payload_size, self._payload, wish, schema)
            queue = wish.options.queue or task.settings.queue
            with self._tracing.trigger(wish.task, queue, wish.trace_carrier) as span:
                now = self._runtime.now()
                new = replace(
                    new_run(task, payload, wish.options, now, None),
                    environment=self._runtime.environment,
                    batch_id=batch_id,
                    trace_carrier=span.carrier,
                )
                commit = self._creation(_continuing(new, wish, continued), actor, now)
                span.about(commit.run.id)
                outcome: Made = await self._batches.commit(commit)
            return handle_of(self._app, task, outcome)
        except PerdureError as error:
            return error

    async def _made_for(
        self,
        wish: Wish,
        origin: Origin,
        task: TaskDefinition,
        actor: Actor,
        continued: Mapping[str, Run],
    ) -> RunHandle[Any]:
        """The client has opened a span of its own, and has made the payload's text."""
        now = self._runtime.now()
        new = replace(
            new_run(task, origin.payload_json, wish.options, now, origin.parent),
            environment=self._runtime.environment,
            batch_id=origin.batch_id,
            trace_carrier=origin.carrier,
        )
        events = decide_create(_continuing(new, wish, continued), origin.run_id, actor, now)
        commit = prepare_commit(None, events, origin.commit_id)
        return handle_of(self._app, task, await self._batches.commit(commit))

    def _payload(self, wish: Wish, schema: dict[str, Any]) -> msgspec.Raw:
        """Checked, as it is stored. Raises InvalidInput."""
        check_payload(wish.task, schema, wish.payload)
        return encode_value(dict(wish.payload), limit=self._runtime.defaults.payload_limit)

    def _creation(self, new: NewRun, actor: Actor, now: datetime) -> Commit:
        events = decide_create(new, self._runtime.ids.run_id(now), actor, now)
        return prepare_commit(None, events, self._runtime.ids.commit_id())

    def _task(self, name: str) -> TaskDefinition:
        if name not in self._entries:
            raise TaskNotFound(name, self._find_similar(name))
        return KnownTask(settings_of(self._entries[name]))

    def _find_similar(self, name: str) -> str | None:
        """Return the known task with the most similar name, for a few names of a batch."""
        if name not in self._similar and len(self._similar) < MAX_HINTS:
            self._similar[name] = find_similar(name, self._entries)
        return self._similar.get(name)

    async def _look_up(self, names: set[str]) -> None:
        now = self._runtime.clock.elapsed()
        if names <= self._entries.keys() and now - self._read_at < FRESH:
            return
        found = await known_tasks(self._runtime.storage, self._runtime.environment)
        self._entries, self._read_at, self._similar = by_name(found), now, {}


def _continuing(new: NewRun, wish: Wish, continued: Mapping[str, Run]) -> NewRun:
    """Raise RunNotFound if the run to continue is not one of the new run's environment."""
    run_id = wish.options.continuation_of
    if run_id is None:
        return new
    if run_id not in continued:
        raise RunNotFound(run_id)
    return continuing(new, continued[run_id])
