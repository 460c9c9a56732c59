"""Asking for runs of tasks whose code is elsewhere: on behalf of others, many at a time.

What a task is like comes from the catalogue, which is read at most once a moment: a server asks
for thousands of runs a second, and tasks change when somebody deploys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec.structs import replace

from perdure.core.commit import Commit, prepare_commit
from perdure.core.decide import continuing, decide_create
from perdure.core.run import Actor, Run
from perdure.core.values import encode_value
from perdure.engine.catalogue import (
    KnownTask,
    TaskEntry,
    by_name,
    check_payload,
    known_tasks,
)
from perdure.engine.client import CommitBatcher, Made, handle_of, new_run
from perdure.engine.options import TaskSettings, TriggerOptions
from perdure.errors import PerdureError, TaskNotFound

if TYPE_CHECKING:
    from perdure.engine.app import App
    from perdure.engine.handle import RunHandle
    from perdure.engine.task import Task

FRESH = 1.0
"""Seconds for which the catalogue is taken to be as it was."""


class Wish(msgspec.Struct, frozen=True):
    """One run that somebody asks for."""

    task: str
    payload: Mapping[str, Any]
    options: TriggerOptions = TriggerOptions()
    payload_size: int = 0
    """Bytes of the payload's JSON, if they are known."""
    origin: Origin | None = None


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Of a run that a worker or a client without a database asks for. The same `run_id` and
    `commit_id` again make no second run. `parent`: the run whose handler asks."""

    run_id: str
    commit_id: str
    payload_json: msgspec.Raw
    parent: Run | None = None
    batch_id: str | None = None
    carrier: dict[str, str] | None = None


Offload = Callable[..., Awaitable[Any]]
"""`await offload(size, function, *arguments)`: the function's result. It may be computed on another
thread if it works on many bytes."""


async def run_inline(size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """An `Offload` that stays on the event loop."""
    return function(*arguments)


class Asking:
    """The trigger side of a process that has nobody's code."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._batches = CommitBatcher(app)
        self._entries: dict[str, TaskEntry] = {}
        self._read_at = float("-inf")

    async def ask(self, wish: Wish, actor: Actor, offload: Offload = run_inline) -> RunHandle[Any]:
        """Durable when it returns. Raises TaskNotFound, InvalidInput and the conflicts of keys."""
        [made] = await self.ask_all([wish], actor, None, offload)
        if isinstance(made, Exception):
            raise made
        return made

    async def ask_all(
        self,
        wishes: Sequence[Wish],
        actor: Actor,
        batch_id: str | None = None,
        offload: Offload = run_inline,
    ) -> list[RunHandle[Any] | Exception]:
        """In the order of the wishes: a handle, or what was wrong with that one."""
        await self._look_up({wish.task for wish in wishes})
        each = (self._made(wish, actor, batch_id, offload) for wish in wishes)
        return list(await asyncio.gather(*each))

    async def _made(
        self, wish: Wish, actor: Actor, batch_id: str | None, offload: Offload
    ) -> RunHandle[Any] | Exception:
        try:
            task = self._task(wish.task)
            schema = self._entries[wish.task].payload_schema or {}
            if wish.origin is not None:
                await offload(wish.payload_size, check_payload, wish.task, schema, wish.payload)
                return await self._made_for(wish, wish.origin, task, actor)
            payload = await offload(wish.payload_size, self._payload, wish, schema)
            queue = wish.options.queue or task.settings.queue
            with self._app.tracing.trigger(wish.task, queue) as span:
                commit = self._creation(task, wish, payload, actor, batch_id, span.carrier)
                span.about(commit.run.id)
                outcome: Made = await self._batches.commit(commit)
            return handle_of(self._app, task, outcome)
        except PerdureError as error:
            return error

    async def _made_for(
        self, wish: Wish, origin: Origin, task: Task[..., Any], actor: Actor
    ) -> RunHandle[Any]:
        """The client has opened a span of its own, and has made the payload's text."""
        app, now = self._app, self._app.time()
        wanted = replace(
            new_run(task, origin.payload_json, wish.options, now, origin.parent),
            environment=app.environment,
            batch_id=origin.batch_id,
            trace_carrier=origin.carrier,
        )
        if origin.parent is not None and wish.options.continuation_of is not None:
            wanted = continuing(wanted, origin.parent)
        events = decide_create(wanted, origin.run_id, actor, now)
        commit = prepare_commit(None, events, origin.commit_id)
        return handle_of(app, task, await self._batches.commit(commit))

    def _payload(self, wish: Wish, schema: dict[str, Any]) -> msgspec.Raw:
        """Checked, as it is stored. Raises InvalidInput."""
        check_payload(wish.task, schema, wish.payload)
        return encode_value(dict(wish.payload), limit=self._app.defaults.payload_limit)

    def _creation(
        self,
        task: Task[..., Any],
        wish: Wish,
        payload: msgspec.Raw,
        actor: Actor,
        batch_id: str | None,
        carrier: dict[str, str] | None,
    ) -> Commit:
        app, now = self._app, self._app.time()
        wanted = replace(
            new_run(task, payload, wish.options, now, None),
            environment=app.environment,
            batch_id=batch_id,
            trace_carrier=carrier,
        )
        events = decide_create(wanted, app.ids.run_id(now), actor, now)
        return prepare_commit(None, events, app.ids.commit_id())

    def _task(self, name: str) -> Task[..., Any]:
        if name not in self._entries:
            raise TaskNotFound(name)
        entry = self._entries[name]
        fields = {field: getattr(entry, field) for field in TaskSettings.__struct_fields__}
        # All that a trigger asks of a task is its settings.
        return cast("Task[..., Any]", KnownTask(TaskSettings(**fields)))

    async def _look_up(self, names: set[str]) -> None:
        now = self._app.clock.elapsed()
        if names <= self._entries.keys() and now - self._read_at < FRESH:
            return
        found = await known_tasks(self._app.storage, self._app.environment)
        self._entries, self._read_at = by_name(found), now
