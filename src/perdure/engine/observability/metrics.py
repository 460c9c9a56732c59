"""`app.metrics`: this process's counters, and the queues as storage sees them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from perdure.core.run.commit import Commit
from perdure.engine.observability.storage_metrics import Facts
from perdure.errors import AppNotOpen, InvalidInput, StorageError
from perdure.storage.contract.inspection import StatusCounts
from perdure.storage.contract.runs import Backlog, Committed, Outcome
from perdure.storage.contract.storage import Storage
from perdure.telemetry import metrics
from perdure.telemetry.metric import Metric
from perdure.telemetry.registry import Gauges, Labels, Registry

if TYPE_CHECKING:
    from perdure.engine.runtime.runtime import RuntimeProvider

    class MeteredApp(RuntimeProvider, Protocol):
        @property
        def queues(self) -> Queues:
            """Raise AppNotOpen."""


FRESH = timedelta(seconds=5)
"""Scrapes that come sooner after one another get the same counts of the storage."""


class Queue(Protocol):
    @property
    def name(self) -> str: ...


class Queues(Protocol):
    async def list(self) -> Sequence[Queue]: ...


class Metrics:
    """One an app; twins share its counters."""

    def __init__(self, app: MeteredApp, like: Metrics | None = None) -> None:
        self.registry: Registry = Registry() if like is None else like.registry
        self._facts = Facts(self.registry)
        self._app = app
        self._queues: _Queues = _Queues() if like is None else like._queues
        self._ticks: dict[str, float] = {} if like is None else like._ticks
        if like is None:
            self.registry.watch(self._queues.read)
            self.registry.watch(self._last_ticks)

    def committed(self, commits: Sequence[Commit]) -> None:
        """Count what became durable without passing through the storage's own methods."""
        outcomes = [Committed(commit.run.id, commit.run.sequence) for commit in commits]
        self._facts.committed(outcomes, commits)

    def borrowed(self, task: str, queue: str, outcomes: Sequence[Outcome]) -> None:
        """Count runs asked for in a transaction whose end others decide."""
        asked = sum(isinstance(outcome, Committed) for outcome in outcomes)
        self.registry.counter(metrics.RUNS_TRIGGERED).add(asked, (task, queue, "borrowed"))

    def record_tick(self, service: str, at: datetime) -> None:
        """Record the last complete pass of a service of this process."""
        self._ticks[service] = at.timestamp()

    def _last_ticks(self) -> Gauges:
        return {metrics.LAST_TICK: {(name,): at for name, at in self._ticks.copy().items()}}

    async def prometheus(self) -> str:
        """Everything as Prometheus text. Looks at the queues if the app is open, at bounded
        cost; while storage is away, what was last known of them is left out."""
        try:
            await self.look_at_queues(self._app.runtime.storage)
        except (AppNotOpen, StorageError):
            self._queues.forget()
        from perdure.telemetry.prometheus import render

        return render(self.registry)

    def opentelemetry(self, provider: Any = None) -> None:
        """Report to an OpenTelemetry meter provider, the global one unless given. Maintenance
        keeps the queues' gauges fresh. Needs `perdure[otel]`."""
        try:
            from opentelemetry.metrics import get_meter_provider

            from perdure.telemetry import opentelemetry
        except ModuleNotFoundError as error:
            raise InvalidInput(
                "opentelemetry", "is not installed: pip install 'perdure[otel]'"
            ) from error
        meter = (provider or get_meter_provider()).get_meter(opentelemetry.SCOPE)
        opentelemetry.instrument(self.registry, meter)
        self._queues.are_exported = True

    async def keep_fresh(self, storage: Storage) -> None:
        """For maintenance: whoever reads the gauges without us cannot ask storage themselves."""
        if self._queues.are_exported:
            await self.look_at_queues(storage)

    async def look_at_queues(self, storage: Storage) -> None:
        components = self._app.components
        now, environment = components.clock.now(), components.environment
        if self._queues.is_fresh(now):
            return
        names = {queue.name for queue in await self._app.queues.list()}
        counts = await storage.status_counts(environment)
        self._queues.take(names, await storage.backlog(environment), counts, now)


class _Queues:
    """What storage last said about them."""

    def __init__(self) -> None:
        self.are_exported = False
        self._looked_at: datetime | None = None
        self._gauges: Gauges = {}

    def is_fresh(self, now: datetime) -> bool:
        return self._looked_at is not None and timedelta(0) <= now - self._looked_at < FRESH

    def take(
        self, names: Set[str], backlogs: Sequence[Backlog], counts: StatusCounts, now: datetime
    ) -> None:
        """`names`: the queues that are known, so that an idle one has a sample, too."""
        busy = {backlog.queue for backlog in backlogs}
        idle = [Backlog(queue=name) for name in sorted(names - busy)]
        self._looked_at = now
        self._gauges = _queue_gauges([*backlogs, *idle], counts) | _schedule_gauges(counts)

    def forget(self) -> None:
        self._looked_at, self._gauges = None, {}

    def read(self) -> Gauges:
        return self._gauges


def _queue_gauges(
    backlogs: Sequence[Backlog], counts: StatusCounts
) -> dict[Metric, dict[Labels, float]]:
    letters = dict.fromkeys((backlog.queue for backlog in backlogs), 0) | counts.dead_letters
    return {
        metrics.QUEUE_DUE: {(b.queue,): b.due for b in backlogs},
        metrics.QUEUE_LATER: {(b.queue,): b.later for b in backlogs},
        metrics.QUEUE_OLDEST_SECONDS: {
            (b.queue,): b.oldest_due_age.total_seconds() for b in backlogs
        },
        metrics.QUEUE_PARKED: {(b.queue,): b.parked for b in backlogs},
        metrics.QUEUE_LEASED: {(b.queue,): b.leased for b in backlogs},
        metrics.DEAD_LETTERS: {(queue,): count for queue, count in letters.items()},
        metrics.LEASES_EXPIRED: {(): counts.expired_leases},
    }


def _schedule_gauges(counts: StatusCounts) -> dict[Metric, dict[Labels, float]]:
    first = counts.next_schedule
    late = timedelta(0) if first is None else max(counts.now - first.at, timedelta(0))
    return {
        metrics.SCHEDULES: {(): counts.schedules},
        metrics.SCHEDULES_DUE: {(): counts.due_schedules},
        metrics.SCHEDULE_OLDEST_SECONDS: {(): late.total_seconds()},
        metrics.SCHEDULE_NEXT: {} if first is None else {(): first.at.timestamp()},
    }
