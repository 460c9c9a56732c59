"""Triggering inside the caller's own transaction: rolled back means never existed."""

from __future__ import annotations

import contextvars
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

import msgspec

from perdure.core.run.commit import Commit
from perdure.core.run.run import Run
from perdure.engine.client.handle import RunHandle
from perdure.engine.client.trigger import Bulk, creation, handle_of, work_of
from perdure.engine.observability.tracing import Carrier, Producer
from perdure.engine.runtime.runtime import Components
from perdure.engine.tasks.options import TriggerOptions
from perdure.storage.borrowed.create_runs import Order, Prepare, enqueue, enqueue_sync
from perdure.storage.contract.runs import Outcome

if TYPE_CHECKING:
    from perdure.engine.definition.task import Task

P = ParamSpec("P")
R = TypeVar("R")


class Place(Protocol):
    """A transaction in which runs can be created."""

    async def create(self, components: Components, order: Order) -> list[Outcome]: ...

    def create_sync(self, components: Components, order: Order) -> list[Outcome]: ...


class Borrowing:
    """The caller's own transaction, on its own connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def create(self, components: Components, order: Order) -> list[Outcome]:
        return await enqueue(self._connection, components.url, components.clock, order)

    def create_sync(self, components: Components, order: Order) -> list[Outcome]:
        return enqueue_sync(self._connection, components.url, components.clock, order)


class TransactionalTask(Generic[P, R]):
    """Made by `task.using(connection)`. Its runs exist once the caller commits, and never if the
    caller rolls back. The app need not be open."""

    def __init__(self, task: Task[P, R], options: TriggerOptions, place: Place) -> None:
        self._task = task
        self._app = task.app
        self._components = task.app.components
        self._options = options
        self._place = place

    async def trigger(self, /, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R]:
        """Ask for a run. With a connection that cannot be awaited, this blocks meanwhile."""
        payload = self._task.payload(args, kwargs)
        with self._span() as span:
            return self._only(await self._create(self._one(payload, span.carrier)))

    def trigger_sync(self, /, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R]:
        """`trigger`, from code that cannot await, here on this thread."""
        payload = self._task.payload(args, kwargs)
        with self._span() as span:
            return self._only(self._create_sync(self._one(payload, span.carrier)))

    async def trigger_many(
        self, items: Iterable[Mapping[str, Any]]
    ) -> list[RunHandle[R] | Exception]:
        """Ask for one run an item; in place of a bad one stands the error."""
        bulk = Bulk(self._components, self._app.original, self._task, items, self._options)
        with self._span() as span:
            prepare = partial(bulk.prepare, carrier=span.carrier)
            return bulk.handles(await self._create(prepare))

    def trigger_many_sync(
        self, items: Iterable[Mapping[str, Any]]
    ) -> list[RunHandle[R] | Exception]:
        """`trigger_many`, from code that cannot await."""
        bulk = Bulk(self._components, self._app.original, self._task, items, self._options)
        with self._span() as span:
            prepare = partial(bulk.prepare, carrier=span.carrier)
            return bulk.handles(self._create_sync(prepare))

    def _span(self) -> AbstractContextManager[Producer]:
        return self._app.tracing.trigger(self._task.name, self._queue)

    def _one(self, payload: msgspec.Raw, carrier: Carrier | None) -> Prepare:
        about = (self._components, self._task, payload, self._options)
        return lambda now, continued: [creation(*about, now, continued, carrier=carrier)]

    def _only(self, outcomes: Sequence[Outcome]) -> RunHandle[R]:
        [outcome] = outcomes
        return handle_of(self._app.original, self._task, outcome)

    async def _create(self, prepare: Prepare) -> list[Outcome]:
        return self._counted(await self._place.create(self._components, self._order(prepare)))

    def _create_sync(self, prepare: Prepare) -> list[Outcome]:
        return self._counted(self._place.create_sync(self._components, self._order(prepare)))

    def _counted(self, outcomes: list[Outcome]) -> list[Outcome]:
        self._app.metrics.borrowed(self._task.name, self._queue, outcomes)
        return outcomes

    @property
    def _queue(self) -> str:
        return self._options.queue or self._task.settings.queue

    def _order(self, prepare: Prepare) -> Order:
        # Some connections have a thread of their own, and that knows nothing of the parent.
        here = contextvars.copy_context()

        def prepare_here(now: datetime, continued: Run | None) -> Sequence[Commit]:
            return here.run(prepare, now, continued)

        return Order(prepare_here, work_of, self._options.continuation_of)
