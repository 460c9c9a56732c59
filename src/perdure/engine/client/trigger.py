"""Asking for runs. Concurrent callers share a transaction without being asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from perdure.core.decide import NewRun, continuing, decide_alike, decide_create, timeless
from perdure.core.run.commit import Commit, prepare_commit
from perdure.core.run.effects import KeyKind
from perdure.core.run.events import Event
from perdure.core.run.run import Policy, Run, Source, SourceType
from perdure.engine.client.batcher import MOST_IN_A_BATCH, Batcher
from perdure.engine.client.handle import HandleApp, RunHandle
from perdure.engine.observability.tracing import Carrier, Tracing
from perdure.engine.runtime import wakeups as hints
from perdure.engine.runtime import write
from perdure.engine.runtime.current_run import attempt_here
from perdure.engine.runtime.ids import Ids
from perdure.engine.runtime.input import duration
from perdure.engine.runtime.runtime import Components, Runtime
from perdure.engine.tasks.concurrency_key import derived_key, derives_key
from perdure.engine.tasks.options import TriggerOptions
from perdure.engine.tasks.task_definition import CodedTask, TaskDefinition
from perdure.errors import (
    IdempotencyConflict,
    InvalidInput,
    InvalidPayload,
    PerdureError,
    StorageError,
)
from perdure.storage.contract.runs import Committed, Outcome

Made = Outcome | Exception
"""What became of a commit, or why nobody knows."""


class Client:
    """The trigger side of an app."""

    def __init__(self, runtime: Runtime, tracing: Tracing, app: HandleApp) -> None:
        """`app`: the one that the handles belong to."""
        self._runtime = runtime
        self._tracing = tracing
        self._app = app
        self._batches = CommitBatcher(runtime)

    async def trigger(
        self, task: TaskDefinition, payload: msgspec.Raw, options: TriggerOptions
    ) -> RunHandle[Any]:
        with self._tracing.trigger(task.name, options.queue or task.settings.queue) as span:
            now, continued = self._runtime.now(), await self._continued(options)
            commit = creation(
                self._runtime, task, payload, options, now, continued, carrier=span.carrier
            )
            span.about(commit.run.id)
            outcome = await self._batches.commit(commit)
        return handle_of(self._app, task, outcome)

    async def trigger_many(
        self, task: CodedTask, items: Iterable[Mapping[str, Any]], options: TriggerOptions
    ) -> list[RunHandle[Any] | Exception]:
        bulk = Bulk(self._runtime, self._app, task, items, options)
        with self._tracing.trigger(task.name, options.queue or task.settings.queue) as span:
            now, continued = self._runtime.now(), await self._continued(options)
            outcomes = await self._batches.commit_all(bulk.parts(now, continued, span.carrier))
        return bulk.handles(outcomes)

    async def _continued(self, options: TriggerOptions) -> Run | None:
        """The run that the new one goes on with, if any."""
        if options.continuation_of is None:
            return None
        parent = attempt_here()
        if parent is not None and parent.run.id == options.continuation_of:
            return parent.run
        environment = self._runtime.environment
        return await write.load(self._runtime.storage, options.continuation_of, environment)


class Bulk:
    """Runs asked for together, with one batch id. One bad item does not stop the others."""

    def __init__(
        self,
        components: Components,
        app: HandleApp,
        task: CodedTask,
        items: Iterable[Mapping[str, Any]],
        options: TriggerOptions,
    ) -> None:
        self._components = components
        self._app = app
        self._task = task
        self._items = listed(items)
        self._options = options
        self._batch_id = f"batch_{components.ids.token()}"
        self._results: dict[int, RunHandle[Any] | Exception] = {}
        self.commits: list[Commit] = []
        self._asked: list[int] = []
        self._pattern: Sequence[Event] | None = None

    def prepare(
        self, now: datetime, continued: Run | None, carrier: Carrier | None = None
    ) -> list[Commit]:
        return [c for part in self.parts(now, continued, carrier) for c in part]

    def parts(
        self, now: datetime, continued: Run | None, carrier: Carrier | None = None
    ) -> Iterator[list[Commit]]:
        """The commits, made as they are asked for, as many at a time as make a batch."""
        items = iter(enumerate(self._items))
        while part := list(islice(items, MOST_IN_A_BATCH)):
            first = len(self.commits)
            for index, item in part:
                self._add(index, item, now, continued, carrier)
            yield self.commits[first:]

    def _add(self, index: int, item: Any, *how: Any) -> None:
        try:
            self.commits.append(self._creation(item, *how))
            self._asked.append(index)
        except PerdureError as error:
            self._results[index] = error
        except Exception as error:  # noqa: BLE001  # whatever somebody put there
            problem = f"item {index} cannot be kept: {type(error).__name__}: {error}"
            self._results[index] = InvalidPayload(self._task.name, "", problem)

    def handles(self, outcomes: Sequence[Made]) -> list[RunHandle[Any] | Exception]:
        """In the order of the items: a handle, or what was wrong. Raises what storage raised, if
        nothing was kept because of it: then it says nothing about any item."""
        if isinstance(error := outcomes[0] if outcomes else None, StorageError) and all(
            isinstance(outcome, StorageError) for outcome in outcomes
        ):
            raise error
        for index, outcome in zip(self._asked, outcomes, strict=True):
            try:
                self._results[index] = handle_of(self._app, self._task, outcome)
            except Exception as error:  # noqa: BLE001  # what the storage raised, for this item
                self._results[index] = error
        return [self._results[index] for index in range(len(self._items))]

    def _creation(
        self,
        item: Mapping[str, Any],
        now: datetime,
        continued: Run | None,
        carrier: Carrier | None,
    ) -> Commit:
        if not isinstance(item, Mapping):
            problem = f"every item must be a mapping of arguments, not {item!r}"
            raise InvalidPayload(self._task.name, "", problem)
        payload = self._task.signature.encode(item, self._components.defaults.payload_limit)
        if self._pattern is not None:
            return _like(self._pattern, self._components.ids, payload, now)
        first = creation(
            self._components,
            self._task,
            payload,
            self._options,
            now,
            continued,
            batch_id=self._batch_id,
            carrier=carrier,
        )
        if not _derives_key(self._task, self._options):
            self._pattern = first.events
        return first


def listed(items: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """They may come from a generator."""
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        example = '[{"user_id": 1}, {"user_id": 2}]'
        problem = f"must be a list of arguments, one dict a run, e.g. {example}, not {items!r:.80}"
        raise InvalidInput("items", problem)
    return list(items)


def creation(
    components: Components,
    task: TaskDefinition,
    payload: msgspec.Raw,
    options: TriggerOptions,
    now: datetime,
    continued: Run | None = None,
    *,
    batch_id: str | None = None,
    carrier: Carrier | None = None,
) -> Commit:
    """The commit that makes a run. Needs no open app."""
    parent = attempt_here()
    special = (parent, continued, batch_id, carrier, options.tags, options.meta)
    is_usual = special == _NOTHING_SPECIAL and not _derives_key(task, options)
    common = (components.environment, components.actor, task.settings, options)
    if is_usual and task.last_made is not None and task.last_made.common == common:
        return _like(task.last_made.events, components.ids, payload, now)
    wish = new_run(task, payload, options, now, None if parent is None else parent.run)
    wish = replace(
        wish, environment=components.environment, batch_id=batch_id, trace_carrier=carrier
    )
    if continued is not None:
        wish = continuing(wish, continued)
    events = decide_create(wish, components.ids.run_id(now), components.actor, now)
    if is_usual and timeless(events):
        task.last_made = LastMade(common, events)
    return prepare_commit(None, events, components.ids.commit_id())


_NOTHING_SPECIAL = (None,) * 6


class LastMade(NamedTuple):
    """The first events of a task's last run, and all they depended on besides its arguments."""

    common: tuple[Any, ...]
    events: Sequence[Event]


def _like(pattern: Sequence[Event], ids: Ids, payload: msgspec.Raw, now: datetime) -> Commit:
    events = decide_alike(pattern, ids.run_id(now), payload, now)
    return prepare_commit(None, events, ids.commit_id())


def handle_of(app: HandleApp, task: TaskDefinition, outcome: Made) -> RunHandle[Any]:
    """Raises what became of the commit, if that is an error."""
    if isinstance(outcome, Exception):
        raise outcome
    if isinstance(outcome, Committed):
        return RunHandle(app, outcome.run_id, task.signature, created=True)
    if outcome.key.kind is KeyKind.IDEMPOTENCY and not outcome.same_payload:
        raise IdempotencyConflict(outcome.key.name, outcome.run_id)
    return RunHandle(app, outcome.run_id, task.signature, created=False)


def work_of(commit: Commit) -> str:
    """What to tell whoever waits for work like this."""
    return hints.work(commit.run.environment, commit.run.queue)


def new_run(
    task: TaskDefinition,
    payload: msgspec.Raw,
    options: TriggerOptions,
    now: datetime,
    parent: Run | None,
) -> NewRun:
    """What a task's definition and one call's options ask for together."""
    settings = task.settings
    run_at = options.run_at
    if options.delay is not None:
        run_at = now + duration(options.delay, "delay")
    ttl = settings.ttl if options.ttl is None else duration(options.ttl, "ttl")
    source = Source(type=SourceType.SPAWN if parent else SourceType.TRIGGER)
    return NewRun(
        task=settings.name,
        payload_json=payload,
        queue=options.queue or settings.queue,
        policy=_policy(settings.policy, options),
        priority=settings.priority if options.priority is None else options.priority,
        run_at=run_at,
        ttl=ttl,
        source=source,
        parent_id=options.parent_id or (parent.id if parent else None),
        root_id=options.root_id or (parent.root_id if parent else None),
        concurrency_key=concurrency_key(task, payload, options),
        idempotency_key=options.idempotency_key,
        singleton_key=options.singleton_key,
        tags=options.tags,
        meta=options.meta,
        task_version=settings.version,
        debug=options.debug,
    )


def concurrency_key(
    task: TaskDefinition, payload: msgspec.Raw, options: TriggerOptions
) -> str | None:
    """The given key, or the one that the task derives. Raises InvalidInput if it needs one."""
    if options.concurrency_key is not None:
        return options.concurrency_key
    function, signature = task.key_function, task.signature
    if function is None or signature is None:
        return derived_key(task.settings, payload)
    return derived_key(task.settings, payload, lambda: function(**signature.all_arguments(payload)))


def _derives_key(task: TaskDefinition, options: TriggerOptions) -> bool:
    return options.concurrency_key is None and derives_key(task.settings)


def _policy(policy: Policy, options: TriggerOptions) -> Policy:
    """The task's policy, with what this run overrides."""
    changes: dict[str, Any] = {}
    if options.retry is not None:
        policy = options.retry.applied_to(policy)
    if options.timeout is not None:
        changes["timeout"] = duration(options.timeout, "timeout")
    if options.idempotency_ttl is not None:
        changes["idempotency_ttl"] = duration(options.idempotency_ttl, "idempotency_ttl")
    return replace(policy, **changes) if changes else policy


class CommitBatcher(Batcher[Commit, Outcome]):
    """Group commit: concurrent triggers share a transaction. Waiting workers get a hint."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime

    async def _outcomes(self, commits: Sequence[Commit]) -> Sequence[Made]:
        carrier, topics = self._runtime.hints, frozenset(map(work_of, commits))
        riding = carrier.ride(topics)
        try:
            outcomes = await self._runtime.storage.commit(commits, telling=riding)
        except Exception as error:  # noqa: BLE001  # handed to whoever waits for it
            return [error] * len(commits)
        if not any(isinstance(outcome, Committed) for outcome in outcomes):
            return outcomes
        if riding:  # other processes know by now
            carrier.hub.tell(topics)
        else:
            carrier.publish(topics)
        return outcomes
