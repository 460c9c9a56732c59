"""Asking a server for runs: the trigger side of an app that has no database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from perdure.engine.client.batcher import MOST_IN_A_BATCH, Batcher
from perdure.engine.client.handle import HandleApp, RunHandle
from perdure.engine.client.trigger import concurrency_key, listed
from perdure.engine.observability.tracing import Carrier, Tracing
from perdure.engine.protocol.attempts import HeldLease
from perdure.engine.protocol.checks import check_message
from perdure.engine.protocol.chunks import in_parts
from perdure.engine.protocol.fields import MAX_TRIGGERS
from perdure.engine.protocol.triggers import (
    OptionsMessage,
    TriggerAnswer,
    TriggeredRun,
    TriggerItem,
    TriggerRequest,
)
from perdure.engine.protocol.values import options_message
from perdure.engine.remote.counts import RemoteFacts
from perdure.engine.remote.server import Server
from perdure.engine.runtime.current_run import attempt_here
from perdure.engine.runtime.ids import make_run_id
from perdure.engine.runtime.runtime import Components, OpenComponents
from perdure.engine.tasks.options import TriggerOptions
from perdure.errors import InvalidPayload, PerdureError, StorageError, StorageRefused

if TYPE_CHECKING:
    from perdure.engine.definition.task import Task

R = TypeVar("R")

_MICROSECOND = timedelta(microseconds=1)

Triggered = TriggeredRun | Exception


class RemoteClient:
    """Does what `Client` does beside a database."""

    def __init__(
        self,
        components: OpenComponents,
        tracing: Tracing,
        app: HandleApp,
        server: Server,
    ) -> None:
        """`app`: the one that the handles belong to."""
        self._components = components
        self._tracing = tracing
        self._app = app
        self._requests = TriggerBatcher(components, app, server)

    async def trigger(
        self, task: Task[..., R], payload: msgspec.Raw, options: TriggerOptions
    ) -> RunHandle[R]:
        with self._tracing.trigger(task.name, options.queue or task.settings.queue) as span:
            wanted = options_message(options)
            item = self._item(task, payload, wanted, self._components.now(), None, span.carrier)
            made = await self._requests.commit(item)
            span.about(made.run_id)
        return self._handle(task, made)

    async def trigger_many(
        self, task: Task[..., R], items: Iterable[Mapping[str, Any]], options: TriggerOptions
    ) -> list[RunHandle[R] | Exception]:
        several = _Several(self, task, listed(items), options)
        with self._tracing.trigger(task.name, options.queue or task.settings.queue) as span:
            parts = several.parts(
                self._components.now(), self._components.ids.token(), span.carrier
            )
            outcomes = await self._requests.commit_all(parts)
        return several.handles(outcomes)

    def _item(
        self,
        task: Task[..., Any],
        payload: msgspec.Raw,
        options: OptionsMessage,
        now: datetime,
        batch: str | None,
        carrier: Carrier | None,
    ) -> TriggerItem:
        if task.settings.has_key_function:  # the server does not have the code
            key = concurrency_key(
                task, payload, TriggerOptions(concurrency_key=options.concurrency_key)
            )
            options = msgspec.structs.replace(options, concurrency_key=key)
        item = TriggerItem(
            request_id=make_run_id(now, self._components.ids.random),
            task=task.name,
            payload=payload,
            options=options,
            parent=_held_lease(),
            batch=batch,
            trace_carrier=carrier,
        )
        check_message(item)
        return item

    def _handle(self, task: Task[..., R], made: TriggeredRun) -> RunHandle[R]:
        return RunHandle(self._app, made.run_id, task.signature, created=made.created)


class _Several:
    """Runs asked for together. One bad item does not stop the others."""

    def __init__(
        self,
        client: RemoteClient,
        task: Task[..., Any],
        items: list[Mapping[str, Any]],
        options: TriggerOptions,
    ) -> None:
        self._client = client
        self._task = task
        self._items = items
        self._options = options_message(options)
        self._results: dict[int, RunHandle[Any] | Exception] = {}
        self._asked: list[int] = []

    def parts(
        self, now: datetime, batch: str, carrier: Carrier | None
    ) -> Iterator[list[TriggerItem]]:
        """Yield the requests' items, as many at a time as make a batch. Each gets a later instant
        than the one before, so that their runs' ids are in that order."""
        items = iter(enumerate(self._items))
        while part := list(islice(items, MOST_IN_A_BATCH)):
            made = [
                self._made(index, item, now + index * _MICROSECOND, batch, carrier)
                for index, item in part
            ]
            yield [item for item in made if item is not None]

    def _made(self, index: int, item: Any, *how: Any) -> TriggerItem | None:
        try:
            made = self._client._item(self._task, self._payload(item), self._options, *how)
        except PerdureError as error:
            self._results[index] = error
        except Exception as error:  # noqa: BLE001  # whatever a caller put there
            problem = f"item {index} cannot be kept: {type(error).__name__}: {error}"
            self._results[index] = InvalidPayload(self._task.name, "", problem)
        else:
            self._asked.append(index)
            return made
        return None

    def _payload(self, item: Any) -> msgspec.Raw:
        if not isinstance(item, Mapping):
            problem = f"every item must be a mapping of arguments, not {item!r}"
            raise InvalidPayload(self._task.name, "", problem)
        return self._task.signature.encode(item, self._client._components.defaults.payload_limit)

    def handles(self, outcomes: Sequence[Triggered]) -> list[RunHandle[Any] | Exception]:
        """In the order of the items. Raise what the server's storage raised, if nothing was
        kept because of it."""
        if isinstance(error := outcomes[0] if outcomes else None, StorageError) and all(
            isinstance(outcome, StorageError) for outcome in outcomes
        ):
            raise error
        for index, outcome in zip(self._asked, outcomes, strict=True):
            if isinstance(outcome, TriggeredRun):
                self._results[index] = self._client._handle(self._task, outcome)
            else:
                self._results[index] = outcome
        return [self._results[index] for index in range(len(self._items))]


class TriggerBatcher(Batcher[TriggerItem, TriggeredRun]):
    """Sends the items of concurrent triggers in one request."""

    def __init__(self, components: Components, app: HandleApp, server: Server) -> None:
        super().__init__()
        self._app = app
        self._server = server
        self._facts = RemoteFacts(components.registry)

    async def _outcomes(self, items: Sequence[TriggerItem]) -> Sequence[Triggered]:
        outcomes: list[Triggered] = []
        for part in in_parts(items, _size, MAX_TRIGGERS):
            outcomes += await self._send(part)
        self._count(items, outcomes)
        return outcomes

    async def _send(self, part: Sequence[TriggerItem]) -> Sequence[Triggered]:
        """A request that no server takes, because it is too large, is refused by itself."""
        try:
            request = TriggerRequest(items=tuple(part))
            answer = await self._server.ask(request, TriggerAnswer)
        except StorageRefused as refusal:
            if len(part) == 1:
                return [refusal]
            return [outcome for item in part for outcome in await self._send([item])]
        except Exception as error:  # noqa: BLE001  # handed to the callers that wait
            return [error] * len(part)
        return [it if isinstance(it, TriggeredRun) else it.value() for it in answer.outcomes]

    def _count(self, items: Sequence[TriggerItem], outcomes: Sequence[Triggered]) -> None:
        asked = []
        for item, outcome in zip(items, outcomes, strict=True):
            settings = self._app.served_tasks.get(item.task)
            queue = item.options.queue or (settings.settings.queue if settings else "default")
            asked.append((item.task, queue, _answer(outcome)))
        self._facts.triggered(asked)


def _answer(outcome: Triggered) -> str:
    if isinstance(outcome, Exception):
        return "refused"
    return "created" if outcome.created else "existing"


def _held_lease() -> HeldLease | None:
    """The lease of the run whose handler asks."""
    parent = attempt_here()
    if parent is None or parent.run.lease is None:
        return None
    return HeldLease(run_id=parent.run.id, token=parent.run.lease.token)


def _size(item: TriggerItem) -> int:
    return len(bytes(item.payload)) + len(msgspec.json.encode(item.options))
